#ifndef DTRUN_MODELS_LAYERS_FOR_EACH_EXAMPLE_H_
#define DTRUN_MODELS_LAYERS_FOR_EACH_EXAMPLE_H_

#include <cstddef>

namespace dtrun::models {

/// Calls body(i) for i = 0 .. count - 1 on OpenMP's threads, the ones that oneDNN computes with.
template <typename Body>
void ForEachExample(int count, const Body& body) {
#pragma omp parallel for schedule(static)
  for (int i = 0; i < count; ++i) body(static_cast<size_t>(i));
}

}  // namespace dtrun::models

#endif
