#ifndef DTRUN_TESTS_SUPPORT_ADASUM_REFERENCE_H_
#define DTRUN_TESTS_SUPPORT_ADASUM_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace dtrun::testing {

using Vector = std::vector<double>;

inline double Dot(const Vector& a, const Vector& b) {
  long double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<long double>(a[i]) * b[i];
  return static_cast<double>(sum);
}

/// Adaptive summation as in the paper: combines each half of the ranks, then the two results.
inline Vector AdasumOf(const std::vector<Vector>& ranks) {
  if (ranks.size() == 1) return ranks[0];
  const auto middle = ranks.begin() + static_cast<std::ptrdiff_t>(ranks.size() / 2);
  const Vector a = AdasumOf({ranks.begin(), middle}), b = AdasumOf({middle, ranks.end()});
  const double aa = Dot(a, a), bb = Dot(b, b), ab = Dot(a, b);
  Vector sum(a.size());
  for (size_t i = 0; i < a.size(); ++i)
    sum[i] = a[i] * (aa == 0 ? 1 : 1 - ab / (2 * aa)) + b[i] * (bb == 0 ? 1 : 1 - ab / (2 * bb));
  return sum;
}

/// |found - expected| / |expected|
inline double RelativeDifference(const Vector& found, const Vector& expected) {
  Vector difference(found.size());
  for (size_t i = 0; i < found.size(); ++i) difference[i] = found[i] - expected[i];
  const double norm = std::sqrt(Dot(expected, expected));
  return std::sqrt(Dot(difference, difference)) / (norm == 0 ? 1 : norm);
}

/// The columns of Q from a QR decomposition of `columns`, by Gram-Schmidt with two rounds.
inline std::vector<Vector> Orthonormal(std::vector<Vector> columns) {
  for (size_t k = 0; k < columns.size(); ++k) {
    for (int round = 0; round < 2; ++round) {
      for (size_t before = 0; before < k; ++before) {
        const double part = Dot(columns[k], columns[before]);
        for (size_t i = 0; i < columns[k].size(); ++i) columns[k][i] -= part * columns[before][i];
      }
    }
    const double norm = std::sqrt(Dot(columns[k], columns[k]));
    for (double& value : columns[k]) value /= norm;
  }
  return columns;
}

}  // namespace dtrun::testing

#endif
