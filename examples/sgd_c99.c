// Fits y = 3 x - 2 to points that are dealt to the ranks, through the C ABI alone. The loss is the
// mean over the points of all ranks: each rank divides by their number, so the gradients are
// summed.
#include <dtrun/c.h>
#include <stdio.h>
#include <stdlib.h>

enum { kSlope, kOffset, kParameters, kPoints = 64, kSteps = 200 };

// An error ends this rank with one line, and the launcher the others.
static void Check(dtrun_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "sgd_c99: %s\n", dtrun_error_message(error));
  dtrun_error_destroy(error);
  exit(1);
}

static dtrun_buffer Floats(float* data, uint64_t count) {
  return dtrun_host_buffer(data, count, DTRUN_F32);
}

int main(void) {
  dtrun_context* job = NULL;
  Check(dtrun_init(NULL, 0, &job));
  const dtrun_topology here = dtrun_context_topology(job);
  dtrun_communicator* world = dtrun_context_world(job);

  float model[kParameters] = {(float)here.rank, 0};  // different everywhere: rank 0's counts
  dtrun_work* work = NULL;
  Check(dtrun_start_broadcast(world, Floats(model, kParameters), 0, &work));
  Check(dtrun_work_wait(work));
  dtrun_work_destroy(work);

  // Without memory of their own, the gradients get it where all ranks of the host can reach it.
  const dtrun_gradient list[kParameters] = {
      {"slope", Floats(NULL, 1)}, {"offset", Floats(NULL, 1)}};
  dtrun_reducer* reducer = NULL;
  Check(dtrun_reducer_create(world, list, kParameters, DTRUN_SUM, 0, &reducer));
  float* gradient[kParameters];
  for (size_t i = 0; i < kParameters; ++i) {
    dtrun_buffer buffer;
    Check(dtrun_reducer_gradient(reducer, i, &buffer));
    gradient[i] = buffer.data;
  }

  for (int step = 0; step < kSteps; ++step) {
    float slope = 0, offset = 0;
    for (int point = here.rank; point < kPoints; point += here.size) {
      const float x = 2 * (float)point / kPoints - 1;
      const float error = model[kSlope] * x + model[kOffset] - (3 * x - 2);
      slope += error * x / kPoints;
      offset += error / kPoints;
    }
    *gradient[kOffset] = offset;
    Check(dtrun_reducer_mark_ready(reducer, kOffset));  // backward: the last parameter comes first
    *gradient[kSlope] = slope;
    Check(dtrun_reducer_mark_ready(reducer, kSlope));
    Check(dtrun_reducer_wait(reducer));
    for (int i = 0; i < kParameters; ++i) model[i] -= 0.5f * *gradient[i];
  }

  if (here.rank == 0)
    printf(
        "%d ranks agree on y = %.2f x %+.2f\n", here.size, (double)model[kSlope],
        (double)model[kOffset]);
  dtrun_reducer_destroy(reducer);
  Check(dtrun_shutdown(job));
  dtrun_context_destroy(job);
  return 0;
}
