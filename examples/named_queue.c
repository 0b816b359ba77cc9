/* Tensors by name through the C ABI: two, which ranks submit in different orders, and a gather of which each rank brings
   another number of rows. */
#include <dtrun/c.h>
#include <stdio.h>
#include <stdlib.h>

static void check(dtrun_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "named_queue: %s\n", dtrun_error_message(error));
  exit(1);
}

static dtrun_named_work* submit(
    dtrun_named_queue* queue, int32_t kind, const char* name, float* data, uint64_t count) {
  dtrun_named_operation operation = dtrun_named_operation_of(kind);
  dtrun_named_tensor tensor = {0};
  dtrun_named_work* work = NULL;
  tensor.name = name;
  tensor.input = dtrun_host_buffer(data, count, DTRUN_F32);
  tensor.shape = &count;
  tensor.dimensions = 1;
  check(dtrun_named_submit(queue, &operation, &tensor, 1, &work));
  return work;
}

static void finish(dtrun_named_work* work) {
  check(dtrun_named_work_wait(work));
  dtrun_named_work_destroy(work);
}

int main(void) {
  dtrun_context* job = NULL;
  check(dtrun_init(NULL, 0, &job));
  dtrun_topology me = dtrun_context_topology(job);

  dtrun_named_queue* queue = NULL;
  check(dtrun_named_queue_create(dtrun_context_world(job), NULL, &queue));

  float weight = (float)me.rank, bias = 1;
  const int backwards = me.rank % 2; /* half of the ranks begin with the bias */
  dtrun_named_work* first = backwards ? submit(queue, DTRUN_NAMED_ALL_REDUCE, "bias", &bias, 1)
                                      : submit(queue, DTRUN_NAMED_ALL_REDUCE, "weight", &weight, 1);
  dtrun_named_work* second = backwards ? submit(queue, DTRUN_NAMED_ALL_REDUCE, "weight", &weight, 1)
                                       : submit(queue, DTRUN_NAMED_ALL_REDUCE, "bias", &bias, 1);
  finish(first);
  finish(second);

  float* rows = malloc(sizeof(float) * (size_t)(me.rank + 1));
  for (int i = 0; i <= me.rank; ++i) rows[i] = (float)me.rank;
  dtrun_named_work* gather =
      submit(queue, DTRUN_NAMED_ALL_GATHER, "rows", rows, (uint64_t)(me.rank + 1));
  check(dtrun_named_work_wait(gather));
  dtrun_buffer all;
  check(dtrun_named_work_result(gather, 0, &all, NULL, NULL));
  if (me.rank == 0) {
    printf(
        "%d ranks: weight %g, bias %g, %d rows, the last from rank %g\n", me.size, weight, bias,
        (int)all.count, ((float*)all.data)[all.count - 1]);
  }
  dtrun_named_work_destroy(gather);
  free(rows);

  dtrun_named_queue_destroy(queue);
  check(dtrun_shutdown(job));
  dtrun_context_destroy(job);
  return 0;
}
