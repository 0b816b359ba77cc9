// Prints what the C ABI consists of besides its functions: the size of each struct, where its
// members lie, and the value of each constant. A line for everything in <dtrun/c.h>.
#include <dtrun/c.h>
#include <stddef.h>
#include <stdio.h>

#define SIZE(type) printf("sizeof %s %zu\n", #type, sizeof(type))
#define MEMBER(type, member)                                                     \
  printf(                                                                        \
      "offsetof %s.%s %zu, %zu bytes\n", #type, #member, offsetof(type, member), \
      sizeof(((type*)0)->member))
#define VALUE(constant) printf("%s %d\n", #constant, constant)

static void Structs(void) {
  SIZE(dtrun_buffer);
  MEMBER(dtrun_buffer, data);
  MEMBER(dtrun_buffer, count);
  MEMBER(dtrun_buffer, dtype);
  MEMBER(dtrun_buffer, device);
  MEMBER(dtrun_buffer, stream);
  SIZE(dtrun_scale);
  MEMBER(dtrun_scale, before);
  MEMBER(dtrun_scale, after);
  SIZE(dtrun_topology);
  MEMBER(dtrun_topology, rank);
  MEMBER(dtrun_topology, size);
  MEMBER(dtrun_topology, local_rank);
  MEMBER(dtrun_topology, local_size);
  MEMBER(dtrun_topology, cross_rank);
  MEMBER(dtrun_topology, cross_size);
  SIZE(dtrun_option);
  MEMBER(dtrun_option, name);
  MEMBER(dtrun_option, value);
  SIZE(dtrun_gradient);
  MEMBER(dtrun_gradient, name);
  MEMBER(dtrun_gradient, buffer);
  SIZE(dtrun_reducer_options);
  MEMBER(dtrun_reducer_options, struct_bytes);
  MEMBER(dtrun_reducer_options, reduce_op);
  MEMBER(dtrun_reducer_options, reserved);
  MEMBER(dtrun_reducer_options, bucket_bytes);
  MEMBER(dtrun_reducer_options, scale);
  MEMBER(dtrun_reducer_options, first_bucket_bytes);
  MEMBER(dtrun_reducer_options, groups);
  MEMBER(dtrun_reducer_options, group_count);
  MEMBER(dtrun_reducer_options, equal_groups);
  MEMBER(dtrun_reducer_options, wire);
  MEMBER(dtrun_reducer_options, rebuild);
  MEMBER(dtrun_reducer_options, wire_format);
  SIZE(dtrun_group);
  MEMBER(dtrun_group, gradients);
  MEMBER(dtrun_group, gradient_count);
  SIZE(dtrun_wire_format);
  MEMBER(dtrun_wire_format, name);
  MEMBER(dtrun_wire_format, dtype);
  MEMBER(dtrun_wire_format, reserved);
  MEMBER(dtrun_wire_format, context);
  MEMBER(dtrun_wire_format, count);
  MEMBER(dtrun_wire_format, compress);
  MEMBER(dtrun_wire_format, decompress);
  SIZE(dtrun_sharded_parameter);
  MEMBER(dtrun_sharded_parameter, name);
  MEMBER(dtrun_sharded_parameter, value);
  SIZE(dtrun_shards_options);
  MEMBER(dtrun_shards_options, struct_bytes);
  MEMBER(dtrun_shards_options, reduce_op);
  MEMBER(dtrun_shards_options, one_copy_per_host);
  MEMBER(dtrun_shards_options, bucket_bytes);
  MEMBER(dtrun_shards_options, slot_count);
  MEMBER(dtrun_shards_options, slot_dtypes);
  SIZE(dtrun_parameter_slice);
  MEMBER(dtrun_parameter_slice, parameter);
  MEMBER(dtrun_parameter_slice, first);
  MEMBER(dtrun_parameter_slice, count);
  MEMBER(dtrun_parameter_slice, gradient);
  MEMBER(dtrun_parameter_slice, value);
  MEMBER(dtrun_parameter_slice, slots);
  SIZE(dtrun_step_statistics);
  MEMBER(dtrun_step_statistics, struct_bytes);
  MEMBER(dtrun_step_statistics, steps);
  MEMBER(dtrun_step_statistics, total_s);
  MEMBER(dtrun_step_statistics, exposed_s);
  MEMBER(dtrun_step_statistics, late_s);
  MEMBER(dtrun_step_statistics, bytes);
  MEMBER(dtrun_step_statistics, buckets);
  SIZE(dtrun_tensor);
  MEMBER(dtrun_tensor, name);
  MEMBER(dtrun_tensor, buffer);
  MEMBER(dtrun_tensor, shape);
  MEMBER(dtrun_tensor, dimensions);
  SIZE(dtrun_metadata);
  MEMBER(dtrun_metadata, key);
  MEMBER(dtrun_metadata, value);
  SIZE(dtrun_checkpoint_options);
  MEMBER(dtrun_checkpoint_options, struct_bytes);
  MEMBER(dtrun_checkpoint_options, max_to_keep);
  MEMBER(dtrun_checkpoint_options, best);
  MEMBER(dtrun_checkpoint_options, sharded);
  MEMBER(dtrun_checkpoint_options, read_only);
  MEMBER(dtrun_checkpoint_options, reserved);
  SIZE(dtrun_save_options);
  MEMBER(dtrun_save_options, struct_bytes);
  MEMBER(dtrun_save_options, name);
  MEMBER(dtrun_save_options, step);
  MEMBER(dtrun_save_options, value);
  MEMBER(dtrun_save_options, has_value);
  MEMBER(dtrun_save_options, asynchronous);
  MEMBER(dtrun_save_options, metadata);
  MEMBER(dtrun_save_options, metadata_count);
  SIZE(dtrun_load_options);
  MEMBER(dtrun_load_options, struct_bytes);
  MEMBER(dtrun_load_options, name);
  MEMBER(dtrun_load_options, best);
  MEMBER(dtrun_load_options, allow_unexpected);
  SIZE(dtrun_checkpoint);
  MEMBER(dtrun_checkpoint, name);
  MEMBER(dtrun_checkpoint, path);
  MEMBER(dtrun_checkpoint, refused);
  MEMBER(dtrun_checkpoint, step);
  MEMBER(dtrun_checkpoint, value);
  MEMBER(dtrun_checkpoint, has_value);
  MEMBER(dtrun_checkpoint, reserved);
  MEMBER(dtrun_checkpoint, bytes);
  MEMBER(dtrun_checkpoint, metadata);
  MEMBER(dtrun_checkpoint, metadata_count);
  SIZE(dtrun_parameter_server_options);
  MEMBER(dtrun_parameter_server_options, struct_bytes);
  MEMBER(dtrun_parameter_server_options, first_step);
  MEMBER(dtrun_parameter_server_options, steps);
  MEMBER(dtrun_parameter_server_options, max_staleness);
  MEMBER(dtrun_parameter_server_options, min_partition_bytes);
  MEMBER(dtrun_parameter_server_options, workers);
  MEMBER(dtrun_parameter_server_options, readers);
  SIZE(dtrun_parameter_shard);
  MEMBER(dtrun_parameter_shard, variable);
  MEMBER(dtrun_parameter_shard, first);
  MEMBER(dtrun_parameter_shard, part);
  MEMBER(dtrun_parameter_shard, parts);
  MEMBER(dtrun_parameter_shard, value);
  SIZE(dtrun_parameter_server_statistics);
  MEMBER(dtrun_parameter_server_statistics, struct_bytes);
  MEMBER(dtrun_parameter_server_statistics, updates);
  MEMBER(dtrun_parameter_server_statistics, pulls);
  MEMBER(dtrun_parameter_server_statistics, repeated_steps);
  MEMBER(dtrun_parameter_server_statistics, lost_workers);
  MEMBER(dtrun_parameter_server_statistics, update_s);
  MEMBER(dtrun_parameter_server_statistics, copy_s);
  MEMBER(dtrun_parameter_server_statistics, cpu_s);
  SIZE(dtrun_parameter_progress);
  MEMBER(dtrun_parameter_progress, struct_bytes);
  MEMBER(dtrun_parameter_progress, steps_done);
  MEMBER(dtrun_parameter_progress, steps);
  MEMBER(dtrun_parameter_progress, workers);
  MEMBER(dtrun_parameter_progress, finished);
}

static void Constants(void) {
  VALUE(DTRUN_INVALID_ARGUMENT);
  VALUE(DTRUN_MISMATCH);
  VALUE(DTRUN_PEER_LOST);
  VALUE(DTRUN_TIMEOUT);
  VALUE(DTRUN_UNAVAILABLE);
  VALUE(DTRUN_SYSTEM);
  VALUE(DTRUN_U8);
  VALUE(DTRUN_I8);
  VALUE(DTRUN_U16);
  VALUE(DTRUN_I16);
  VALUE(DTRUN_U32);
  VALUE(DTRUN_I32);
  VALUE(DTRUN_U64);
  VALUE(DTRUN_I64);
  VALUE(DTRUN_F16);
  VALUE(DTRUN_BF16);
  VALUE(DTRUN_F32);
  VALUE(DTRUN_F64);
  VALUE(DTRUN_BOOL);
  VALUE(DTRUN_SUM);
  VALUE(DTRUN_AVERAGE);
  VALUE(DTRUN_MIN);
  VALUE(DTRUN_MAX);
  VALUE(DTRUN_PRODUCT);
  VALUE(DTRUN_WIRE_NONE);
  VALUE(DTRUN_WIRE_F16);
  VALUE(DTRUN_WIRE_BF16);
  VALUE(DTRUN_BEST_NONE);
  VALUE(DTRUN_BEST_LOWEST);
  VALUE(DTRUN_BEST_HIGHEST);
  VALUE(DTRUN_WORKER);
  VALUE(DTRUN_READER);
}

int main(void) {
  Structs();
  Constants();
  return 0;
}
