#include "runtime/reducer/bucket_plan.h"

#include <catch2/catch.hpp>
#include <random>

namespace dtrun::testing {
namespace {

using namespace runtime;
using Indices = std::vector<size_t>;

BucketPlan Plan(
    std::vector<GradientSpec> gradients, uint64_t bucket_bytes, uint64_t first_bucket_bytes = 0,
    std::vector<Indices> groups = {}) {
  const Indices order = ReverseOrder(gradients.size());
  PlanSettings settings{
      .bucket_bytes = bucket_bytes,
      .first_bucket_bytes = first_bucket_bytes > 0 ? first_bucket_bytes : bucket_bytes,
      .groups = std::move(groups)};
  return PlanBuckets(std::move(gradients), settings, order);
}

// `count` gradients of 64 bytes.
std::vector<GradientSpec> Lines(size_t count) {
  std::vector<GradientSpec> gradients;
  for (size_t i = 0; i < count; ++i) gradients.push_back({std::to_string(i), 16});
  return gradients;
}

std::vector<Indices> BucketsOf(const BucketPlan& plan) {
  std::vector<Indices> buckets;
  for (const Bucket& bucket : plan.buckets) buckets.push_back(bucket.gradients);
  return buckets;
}

// Checks the properties of every plan.
void CheckPlan(const BucketPlan& plan) {
  std::vector<int> found(plan.gradients.size());
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    uint64_t end = bucket.offset;
    for (const size_t i : bucket.gradients) {
      ++found[i];
      CHECK(plan.bucket_of[i] == b);
      CHECK(plan.gradients[i].dtype == bucket.dtype);
      CHECK(plan.offsets[i] == end);
      end += (plan.gradients[i].count * SizeOf(bucket.dtype) + 63) / 64 * 64;
    }
    if (!bucket.is_single) CHECK(bucket.offset + bucket.count * SizeOf(bucket.dtype) == end);
  }
  CHECK(found == std::vector<int>(plan.gradients.size(), 1));
  if (plan.gradients.empty()) return;
  const Bucket& last = plan.buckets.back();
  CHECK_FALSE(last.is_single);
  CHECK(last.dtype == plan.flags.dtype);
  CHECK(last.offset + last.count * SizeOf(last.dtype) == plan.flags.offset);
  CHECK(plan.flags.count >= plan.gradients.size());
  CHECK(plan.flags.offset + plan.flags.count * SizeOf(plan.flags.dtype) <= plan.block_bytes);
}

TEST_CASE("the default bucket size is a sixteenth of the gradients within limits") {
  const auto size = [](uint64_t mib_64ths, bool within_one_host) {
    return AutoBucketBytes(
        {{"a", mib_64ths << 12, DType::kF32}, {"b", mib_64ths << 11, DType::kF64}},
        within_one_host);
  };
  // The two gradients together have 2 * `mib_64ths` / 64 MiB.
  CHECK(size(1, false) == 64 << 10);
  CHECK(size(1, true) == 1 << 20);
  CHECK(size(64, false) == 128 << 10);
  CHECK(size(64, true) == 1 << 20);
  CHECK(size(1024, false) == 2 << 20);
  CHECK(size(1024, true) == 2 << 20);
  CHECK(size(100'000, false) == 4 << 20);
  CHECK(AutoBucketBytes({}, true) == 1 << 20);
}

TEST_CASE("buckets go through the gradients from the last layer to the first") {
  const BucketPlan plan = Plan({{"a", 4}, {"b", 4}, {"c", 64}}, 256);
  REQUIRE(plan.buckets.size() == 2);
  CHECK(plan.buckets[0].gradients == Indices{2});
  CHECK(plan.buckets[1].gradients == Indices{1, 0});
  // Each gradient starts on a cache line. The padding is part of the bucket.
  CHECK(plan.offsets == std::vector<uint64_t>{320, 256, 0});
  CHECK(plan.buckets[1].count == 32);
  CHECK(plan.flags.offset == 384);
  CheckPlan(plan);
}

TEST_CASE("a large gradient has its own bucket without padding and the flags have another") {
  const BucketPlan plan = Plan({{"a", 262'145}, {"b", 4}, {"c", 262'144}, {"d", 4}}, 1 << 20, 64);
  REQUIRE(plan.buckets.size() == 5);
  CHECK(plan.buckets[0].gradients == Indices{3});
  CHECK(plan.buckets[1].gradients == Indices{2});
  CHECK(plan.buckets[1].is_single);
  CHECK_FALSE(plan.buckets[2].is_single);
  CHECK(plan.buckets[3].count == 262'145);
  CHECK(plan.buckets[4].gradients.empty());
  CheckPlan(plan);
}

TEST_CASE("each dtype fills its own buckets in the order in which they are complete") {
  const BucketPlan plan = Plan({{"a", 4}, {"b", 4, DType::kBF16}, {"c", 4}}, 1 << 20);
  CHECK(BucketsOf(plan) == std::vector<Indices>{{1}, {2, 0}});
  CHECK(plan.buckets[0].dtype == DType::kBF16);
  CheckPlan(plan);
}

TEST_CASE("a plan without gradients has no buckets") {
  const BucketPlan plan = Plan({}, 1024);
  CHECK(plan.buckets.empty());
  CHECK(Replan(plan, {}).buckets.empty());
}

TEST_CASE("the flags are part of the last bucket if that bucket holds floats") {
  const BucketPlan plan = Plan({{"a", 4}, {"b", 4}, {"c", 64}}, 128);
  CHECK(plan.flags.offset == 384);
  CHECK(plan.buckets.size() == 2);

  const BucketPlan counts = Plan({{"steps", 4, DType::kI64}, {"w", 4, DType::kF64}}, 1024);
  CHECK(counts.flags.dtype == DType::kF32);
  REQUIRE(counts.buckets.size() == 3);
  CHECK(counts.buckets[2].gradients.empty());
  CheckPlan(counts);
}

TEST_CASE("only the first bucket is small") {
  const BucketPlan plan = Plan(Lines(10), 256, 128);
  CHECK(BucketsOf(plan) == std::vector<Indices>{{9, 8}, {7, 6, 5, 4}, {3, 2, 1, 0}});
  CheckPlan(plan);
}

TEST_CASE("a group is one bucket at the place of its last gradient and the rest is as usual") {
  const BucketPlan plan = Plan(Lines(8), 128, 128, {{6, 2}, {0}, {5, 4, 3}});
  CHECK(BucketsOf(plan) == std::vector<Indices>{{7}, {5, 4, 3}, {6, 2}, {1}, {0}});
  CheckPlan(plan);
  CheckPlan(Replan(plan, {0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_CASE("a large gradient in a group of several shares the bucket of the group") {
  const BucketPlan plan =
      Plan({{"a", 1 << 20}, {"b", 4}, {"c", 1 << 20}}, 1 << 20, 0, {{0, 1}, {2}});
  CHECK_FALSE(plan.buckets[plan.bucket_of[0]].is_single);
  CHECK(plan.buckets[plan.bucket_of[2]].is_single);
  CheckPlan(plan);
}

TEST_CASE("groups by number have about equal counts and one dtype each") {
  CHECK(DealGroups(Lines(5), 2) == std::vector<Indices>{{0, 1, 2}, {3, 4}});
  CHECK(DealGroups(Lines(3), 3) == std::vector<Indices>{{0}, {1}, {2}});
  std::vector<GradientSpec> mixed = Lines(4);
  mixed[1].dtype = DType::kF16;
  CHECK(DealGroups(mixed, 1) == std::vector<Indices>{{1}, {0, 2, 3}});
}

TEST_CASE("a plan stays unchanged when it is replanned for the expected order") {
  const uint64_t first = GENERATE(64, 128, 256);
  const BucketPlan plan = Plan(Lines(23), 256, first);
  CHECK(Replan(plan, ReverseOrder(23)).buckets == plan.buckets);
}

TEST_CASE("a bucket is cut if it would wait for more bytes of other dtypes than it may hold") {
  std::vector<GradientSpec> gradients = Lines(6);
  for (size_t i = 1; i < 5; ++i) gradients[i].dtype = DType::kI32;
  CHECK(BucketsOf(Plan(gradients, 256)) == std::vector<Indices>{{4, 3, 2, 1}, {5, 0}});
  CHECK(BucketsOf(Plan(gradients, 128)) == std::vector<Indices>{{5}, {4, 3}, {2, 1}, {0}});
}

TEST_CASE("a replanned late gradient does not delay other gradients") {
  const BucketPlan plan = Plan(Lines(8), 128);
  REQUIRE(BucketsOf(plan) == std::vector<Indices>{{7, 6}, {5, 4}, {3, 2}, {1, 0}});
  // Gradient 6 is ready last: it was registered late, but the first layer uses it.
  const BucketPlan late = Replan(plan, {7, 5, 4, 3, 2, 1, 0, 6});
  CHECK(BucketsOf(late) == std::vector<Indices>{{7}, {5, 4}, {3, 2}, {1, 0}, {6}, {}});
  CHECK(late.offsets == plan.offsets);
  CheckPlan(late);
}

TEST_CASE("replanned neighbours in another order stay together") {
  const BucketPlan plan = Plan(Lines(8), 256);
  CHECK(BucketsOf(Replan(plan, {6, 7, 4, 5, 2, 3, 0, 1})) == BucketsOf(plan));
}

TEST_CASE("a plan replanned for the reverse order is cut from the end of its block") {
  const BucketPlan plan = Plan(Lines(8), 128, 64);
  const BucketPlan reversed = Replan(plan, {0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(reversed.buckets.front().gradients.back() == 0);
  CHECK(reversed.buckets.back().gradients.empty());
  CheckPlan(reversed);
}

TEST_CASE("replanned gradients stay in place and large gradients stay alone in any order") {
  std::mt19937 random(1234);
  for (int round = 0; round < 200; ++round) {
    const size_t count = 1 + random() % 30;
    std::vector<GradientSpec> gradients;
    const DType dtypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kI32};
    for (size_t i = 0; i < count; ++i) {
      gradients.push_back(
          {std::to_string(i), random() % 10 == 0 ? 600'000 : random() % 100,
           dtypes[random() % 8 < 5 ? 0 : random() % 4]});
    }
    std::vector<Indices> groups;
    if (random() % 2 == 0) groups = DealGroups(gradients, 1 + random() % count);
    groups.resize(groups.size() / 2);
    const BucketPlan plan = Plan(gradients, 64 + random() % 2048, 64, groups);
    CheckPlan(plan);
    Indices order = ReverseOrder(count);
    std::shuffle(order.begin(), order.end(), random);
    const BucketPlan replanned = Replan(plan, order);
    CheckPlan(replanned);
    CHECK(replanned.offsets == plan.offsets);
    CHECK(replanned.block_bytes == plan.block_bytes);
    for (size_t i = 0; i < count; ++i) {
      const Bucket& before = plan.buckets[plan.bucket_of[i]];
      const Bucket& after = replanned.buckets[replanned.bucket_of[i]];
      CHECK(before.is_single == after.is_single);
    }
    for (const Indices& group : groups) {
      for (const size_t i : group) CHECK(replanned.bucket_of[i] == replanned.bucket_of[group[0]]);
      CHECK(replanned.buckets[replanned.bucket_of[group[0]]].gradients.size() == group.size());
    }
    // A new layout of the same gradients needs a block of the same size.
    const BucketPlan anew = PlanBuckets(gradients, plan.settings, order);
    CheckPlan(anew);
    CHECK(anew.block_bytes == plan.block_bytes);
  }
}

}  // namespace
}  // namespace dtrun::testing
