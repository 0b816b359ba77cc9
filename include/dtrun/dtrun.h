/// \file
/// All headers that a trainer needs. Start with context.h (Init, Shutdown), distributed_optimizer.h
/// and communicator.h.
#ifndef DTRUN_DTRUN_H_
#define DTRUN_DTRUN_H_

#include <dtrun/checkpoint.h>
#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/dataset.h>
#include <dtrun/detail/device.h>
#include <dtrun/detail/distributed_options.h>
#include <dtrun/detail/variable.h>
#include <dtrun/device_memory.h>
#include <dtrun/distributed_optimizer.h>
#include <dtrun/elastic.h>
#include <dtrun/error.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/metrics.h>
#include <dtrun/named_queue.h>
#include <dtrun/objects.h>
#include <dtrun/optimizer.h>
#include <dtrun/parameter_server.h>
#include <dtrun/parameter_server_strategy.h>
#include <dtrun/preemption.h>
#include <dtrun/replicas.h>
#include <dtrun/sharded_optimizer.h>
#include <dtrun/sliceable_optimizer.h>
#include <dtrun/strategies.h>
#include <dtrun/strategy.h>
#include <dtrun/tensors.h>
#include <dtrun/types.h>

#endif
