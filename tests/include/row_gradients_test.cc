// Gradients of some rows of a parameter (MarkRows).

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/include/optimizer_rig.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using Rows = std::vector<int64_t>;

// Gradient descent on an embedding of 6 rows with 2 elements each, and on a vector.
template <typename T>
class Embedding : public Optimizer {
 public:
  explicit Embedding(bool takes_rows) : takes_rows_(takes_rows) {
    list_ = {{"table", Buffer(table.data(), 12), Buffer()}, {"w", Buffer(w.data(), 3), Buffer()}};
    list_[0].row_length = 2;
  }
  std::vector<Parameter>& parameters() override { return list_; }
  std::vector<NamedBuffer> state() override { return {}; }
  bool TakesRows() const override { return takes_rows_; }
  void Step() override {
    touched.clear();
    const Parameter& parameter = list_[0];
    if (parameter.has_gradient && parameter.gradient.data != nullptr) {
      for (size_t k = 0; k < 12; ++k) table[k] -= static_cast<const T*>(parameter.gradient.data)[k];
    } else if (parameter.has_gradient) {
      const auto* values = static_cast<const T*>(parameter.rows.values.data);
      for (uint64_t k = 0; k < parameter.rows.count; ++k) {
        touched.push_back(parameter.rows.rows[k]);
        for (size_t j = 0; j < 2; ++j)
          table[static_cast<size_t>(parameter.rows.rows[k]) * 2 + j] -= values[2 * k + j];
      }
    }
    if (list_[1].has_gradient)
      for (size_t k = 0; k < 3; ++k) w[k] -= static_cast<const float*>(list_[1].gradient.data)[k];
  }

  std::vector<T> table = std::vector<T>(12);
  std::vector<float> w = std::vector<float>(3);
  Rows touched;

 private:
  bool takes_rows_;
  std::vector<Parameter> list_;
};

template <typename T>
void Mark(DistributedOptimizer& optimizer, const Rows& rows, std::vector<T> values) {
  optimizer.MarkRows(0, rows.data(), rows.size(), Buffer(values.data(), values.size()));
}

// Rank 0 marks row 4 twice and row 1 once. Rank 1 marks rows 0 and 4. Rank 2 marks no row.
template <typename T>
void CheckRows(bool takes_rows, bool as_dense, ReduceOp op) {
  CHECK(OnRanks(3, [&](Communicator& world) {
          Embedding<T> embedding(takes_rows);
          DistributedOptions options;
          options.op = op;
          options.sparse_as_dense = as_dense;
          options.check_every = 1;
          DistributedOptimizer optimizer(world, embedding, options);
          for (int step = 1; step <= 3; ++step) {
            optimizer.ZeroGradients();
            if (world.rank() == 0) Mark<T>(optimizer, {4, 1, 4}, {3, 6, 9, 12, 15, 18});
            if (world.rank() == 1) Mark<T>(optimizer, {0, 4}, {30, 60, 3, 3});
            if (world.rank() == 2) Mark<T>(optimizer, {}, {});
            optimizer.MarkReady(1);
            optimizer.Step();
            const T each = (op == ReduceOp::kAverage ? T(-1) / 3 : T(-1)) * T(step);
            const std::vector<T> expected = {30, 60, 9, 12, 0, 0, 0, 0, 21, 27, 0, 0};
            for (size_t k = 0; k < 12; ++k)
              Expect(
                  std::abs(embedding.table[k] - expected[k] * each) < T(1e-4),
                  "element " + std::to_string(k));
            if (takes_rows && !as_dense)
              Expect(embedding.touched == Rows{0, 1, 4}, "no other row is touched");
          }
        }) == Nothing(3));
}

TEST_CASE("the rows of all ranks are gathered and equal rows are added up") {
  const bool takes_rows = GENERATE(true, false);
  const bool as_dense = GENERATE(true, false);
  const ReduceOp op = GENERATE(ReduceOp::kAverage, ReduceOp::kSum);
  CheckRows<float>(takes_rows, as_dense, op);
  CheckRows<double>(takes_rows, as_dense, op);
}

TEST_CASE("a parameter has no gradient if no rank marked a row") {
  CHECK(OnRanks(2, [](Communicator& world) {
          const bool takes_rows = false;
          Embedding<float> embedding(takes_rows);
          DistributedOptimizer optimizer(world, embedding);
          Mark<float>(optimizer, {2}, {2, 2});
          optimizer.Step();
          Expect(optimizer.parameters()[0].has_gradient, "a row");
          Mark<float>(optimizer, {}, {});
          optimizer.Step();
          Expect(!optimizer.parameters()[0].has_gradient, "none");
          Expect(embedding.table[4] == -2, "the last step's row is not there any more");
        }) == Nothing(2));
}

TEST_CASE("the rows of several passes are combined even under NoSync") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Embedding<float> embedding(true);
          DistributedOptions options;
          options.backward_passes_per_step = 2;
          options.average_aggregated_gradients = true;
          DistributedOptimizer optimizer(world, embedding, options);
          {
            const auto scope = optimizer.NoSync();
            Mark<float>(optimizer, {5}, {4, 4});
          }
          Mark<float>(optimizer, {5}, {4, 8});
          Mark<float>(optimizer, {1}, {4, 4});
          optimizer.Step();
          Expect(embedding.table[10] == -4 && embedding.table[11] == -6, "row 5");
          Expect(embedding.table[2] == -2, "row 1");
          const auto scope = optimizer.NoSync();
          Mark<float>(optimizer, {world.rank()}, {8, 8});
          optimizer.Step();
          Expect(embedding.touched == Rows{world.rank()}, "this rank's own");
        }) == Nothing(2));
}

TEST_CASE("row gradients are clipped together with all other gradients") {
  const bool takes_rows = GENERATE(true, false);
  CHECK(OnRanks(2, [&](Communicator& world) {
          Embedding<float> embedding(takes_rows);
          DistributedOptions options;
          options.max_gradient_norm = 5;
          DistributedOptimizer optimizer(world, embedding, options);
          Mark<float>(optimizer, {world.rank()}, {0, 12});  // averages of 6 and 6
          static_cast<float*>(optimizer.parameters()[1].gradient.data)[0] = 0;
          optimizer.Step();
          Expect(std::abs(*optimizer.gradient_norm() - std::sqrt(72)) < 1e-5, "the norm");
          Expect(std::abs(embedding.table[1] + 5 / std::sqrt(2.0f)) < 1e-4f, "the row");
        }) == Nothing(2));
}

TEST_CASE("a rank in Join has no rows and the average divides by the other ranks") {
  const bool as_dense = GENERATE(true, false);
  CHECK(OnRanks(3, [&](Communicator& world) {
          Embedding<float> embedding(true);
          DistributedOptions options;
          options.sparse_as_dense = as_dense;
          DistributedOptimizer optimizer(world, embedding, options);
          for (int step = 0; step < world.rank(); ++step) {
            optimizer.ZeroGradients();
            Mark<float>(optimizer, {3}, {2, 4});
            optimizer.Step();
          }
          Expect(optimizer.Join() == 2, "the last");
          Expect(std::abs(embedding.table[6] + 4) < 1e-5f, "2 with two ranks, 2 with one");
        }) == Nothing(3));
}

TEST_CASE("row and whole gradients of one parameter on different ranks are an error on all ranks") {
  const Texts texts = OnRanks(3, [](Communicator& world) {
    Embedding<float> embedding(true);
    DistributedOptimizer optimizer(world, embedding);
    if (world.rank() == 1)
      optimizer.MarkReady(0);
    else
      Mark<float>(optimizer, {3}, {2, 4});
    optimizer.Step();
  });
  for (const std::string& text : texts)
    CHECK(
        text ==
        "parameter 'table' was marked with its whole gradient on rank 1 and by rows on ranks 0, 2; "
        "mark it with MarkRows() on all ranks, or set sparse_as_dense");
}

TEST_CASE("invalid rows are refused with the name of the parameter") {
  const auto refusal = [](const std::function<void(DistributedOptimizer&)>& mark) {
    return OnRanks(1, [&](Communicator& world) {
      Embedding<float> embedding(true);
      DistributedOptimizer optimizer(world, embedding);
      mark(optimizer);
    })[0];
  };
  CHECK(refusal([](auto& o) {
          Mark<float>(o, {1, 6}, {0, 0, 0, 0});
        }) == "the rows of parameter 'table': row 6 does not exist; expected 0 to 5");
  CHECK_THAT(
      refusal([](auto& o) {
        Mark<float>(o, {-1}, {0, 0});
      }),
      Contains("row -1 does not exist"));
  CHECK(refusal([](auto& o) {
          Mark<double>(o, {1}, {0, 0});
        }) == "the rows of parameter 'table': their values are f64; expected f32");
  CHECK(refusal([](auto& o) {
          Mark<float>(o, {1, 2}, {0, 0, 0});
        }) == "the rows of parameter 'table': found 3 values; expected 4, 2 rows of 2");
  CHECK(
      refusal(
          [](auto& o) { o.MarkRows(1, nullptr, 0, Buffer(static_cast<float*>(nullptr), 0)); }) ==
      "the rows of parameter 'w': found no row_length; set Parameter::row_length before the "
      "optimizer is wrapped");
  CHECK_THAT(
      refusal([](auto& o) {
        Mark<float>(o, {1}, {0, 0}), Mark<float>(o, {1}, {0, 0});
      }),
      Contains("the gradient of 'table' was marked ready more than once"));
}

TEST_CASE("an infinite row gradient is named with the rank and the step") {
  const Texts texts = OnRanks(2, [](Communicator& world) {
    Embedding<float> embedding(true);
    DistributedOptions options;
    options.check_every = 1;
    DistributedOptimizer optimizer(world, embedding, options);
    Mark<float>(optimizer, {1}, {0, world.rank() == 1 ? INFINITY : 0});
    optimizer.Step();
  });
  for (const std::string& text : texts)
    CHECK(text == "the gradient of 'table' is infinite or NaN on rank 1 in step 0");
}

}  // namespace
}  // namespace dtrun::testing
