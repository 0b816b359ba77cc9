#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/include/optimizer_rig.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("several backward passes make one step with the sum or average of their gradients") {
  const int size = GENERATE(1, 2, 3);
  const bool average = GENERATE(false, true);
  const bool marks = GENERATE(false, true);
  CHECK(OnRanks(size, [&](Communicator& world) {
          Model model;
          DistributedOptions options;
          options.backward_passes_per_step = 4;
          options.average_aggregated_gradients = average;
          DistributedOptimizer optimizer(world, model, options);
          for (int step = 1; step <= 3; ++step) {
            optimizer.ZeroGradients();
            for (int pass = 0; pass < 4; ++pass) {
              model.Backward(static_cast<float>(2 * world.rank()));
              if (marks) MarkAll(optimizer);
            }
            optimizer.Step();
            const float each = static_cast<float>(world.size() - 1) * (average ? 1 : 4);
            Expect(model.value(1)[1] == -each * static_cast<float>(step), "the step's size");
          }
        }) == Nothing(size));
}

TEST_CASE("gradient_predivide_factor keeps the average and avoids overflow") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          DistributedOptions options;
          options.gradient_predivide_factor = 2;
          DistributedOptimizer optimizer(world, model, options);
          optimizer.ZeroGradients();
          model.Backward(3e38f);  // the sum of two is infinite
          optimizer.Step();
          Expect(model.value(0)[2] == -3e38f, "the average");
        }) == Nothing(2));
}

TEST_CASE("reduced gradients are clipped by the norm of all gradients together") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model({1, 1});
          DistributedOptions options;
          options.max_gradient_norm = 5;
          DistributedOptimizer optimizer(world, model, options);
          model.gradient(0)[0] = world.rank() == 0 ? 12 : 0;  // averages 6 and 8: the norm is 10
          model.gradient(1)[0] = world.rank() == 0 ? 0 : 16;
          optimizer.Step();
          Expect(std::abs(*optimizer.gradient_norm() - 10) < 1e-9, "the norm");
          Expect(std::abs(model.value(0)[0] + 3) < 1e-5, "the first, clipped");
          Expect(std::abs(model.value(1)[0] + 4) < 1e-5, "the second, clipped");
          model.gradient(0)[0] = 3, model.gradient(1)[0] = 4;
          optimizer.Step();
          Expect(std::abs(model.value(0)[0] + 6) < 1e-5, "what is not above the norm stays");
        }) == Nothing(2));
}

TEST_CASE("a trainer can read and change reduced gradients before the step") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          DistributedOptimizer optimizer(world, model);
          optimizer.ZeroGradients();
          model.Backward(static_cast<float>(world.rank()));
          MarkAll(optimizer);
          optimizer.Synchronize();
          Expect(model.gradient(0)[0] == 0.5f, "the average");
          model.gradient(0)[0] = 7;
          optimizer.Step();
          Expect(
              model.value(0)[0] == -7 && model.value(0)[1] == -0.5f, "the step uses what is there");
        }) == Nothing(2));
}

TEST_CASE("passes under NoSync reduce no gradients and are not counted") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          DistributedOptimizer optimizer(world, model);
          optimizer.ZeroGradients();
          {
            const auto scope = optimizer.NoSync();
            for (int pass = 0; pass < 3; ++pass) model.Backward(1), MarkAll(optimizer);
          }
          model.Backward(static_cast<float>(2 * world.rank()));
          MarkAll(optimizer);
          optimizer.Step();
          Expect(model.value(0)[0] == -4, "three passes and the average of the last");
          const auto scope = optimizer.NoSync();
          optimizer.ZeroGradients();
          model.Backward(static_cast<float>(world.rank()));
          optimizer.Step();
          Expect(model.value(0)[0] == -4 - static_cast<float>(world.rank()), "a step of its own");
        }) == Nothing(2));
}

TEST_CASE("gradients of local parameters are not reduced") {
  CHECK(OnRanks(3, [](Communicator& world) {
          Model model({3, 2, 4});
          DistributedOptions options;
          options.local_parameters = {"p1"};
          DistributedOptimizer optimizer(world, model, options);
          optimizer.ZeroGradients();
          model.Backward(static_cast<float>(world.rank()));
          MarkAll(optimizer);
          optimizer.Step();
          Expect(model.value(0)[0] == -1 && model.value(2)[3] == -1, "the others are reduced");
          Expect(model.value(1)[0] == -static_cast<float>(world.rank()), "p1 is not");
        }) == Nothing(3));
}

TEST_CASE("a gradient that is infinite or not a number is named with its rank and step") {
  const float bad =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  const Texts texts = OnRanks(3, [&](Communicator& world) {
    Model model;
    DistributedOptions options;
    options.check_every = 2;
    DistributedOptimizer optimizer(world, model, options);
    for (int step = 0; step < 3; ++step) {
      optimizer.ZeroGradients();
      model.Backward(1);
      if (step == 2 && world.rank() == 1) model.gradient(1)[1] = bad;
      MarkAll(optimizer);
      optimizer.Step();
    }
  });
  for (const std::string& text : texts)
    CHECK(text == "the gradient of 'p1' is infinite or NaN on rank 1 in step 2");
}

TEST_CASE("a reduction that overflows is reported on all ranks even if every input is finite") {
  for (const std::string& error : OnRanks(2, [](Communicator& world) {
         Model model;
         DistributedOptions options;
         options.op = ReduceOp::kSum;
         options.check_every = 2;
         DistributedOptimizer optimizer(world, model, options);
         for (int step = 0; step < 3; ++step) {
           optimizer.ZeroGradients();
           model.Backward(1);
           if (step > 0) model.gradient(1)[1] = step == 2 ? 3e38f : 1e38f;
           optimizer.Step();
         }
       }))
    CHECK(
        error ==
        "the reduced gradient of 'p1' is infinite or NaN on all ranks in step 2, though each "
        "rank's own is finite: the reduction overflows");
}

TEST_CASE("a gradient of another size than its parameter is refused") {
  float value[4] = {}, gradient[4] = {};
  for (const std::string& error : OnRanks(2, [&](Communicator& world) {
         Model model;
         model.parameters()[1].value = Buffer(value, 4);
         model.parameters()[1].gradient = Buffer(gradient, 2);
         DistributedOptimizer(world, model);
       }))
    CHECK(
        error ==
        "DistributedOptimizer: the gradient of 'p1' is f32[2]; expected the count and dtype of the "
        "value, f32[4]");
}

TEST_CASE("a frozen parameter stays frozen under NoSync") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          DistributedOptimizer optimizer(world, model);
          optimizer.Freeze(0);
          model.Backward(1);
          const auto scope = optimizer.NoSync();
          MarkAll(optimizer);
          optimizer.Step();
          Expect(model.value(0)[0] == 0, "the frozen one stays");
          Expect(model.value(1)[0] == -1, "the other moves");
        }) == Nothing(2));
}

TEST_CASE("parameters that differ between ranks are named with the rank and the step") {
  const Texts texts = OnRanks(3, [](Communicator& world) {
    Model model;
    DistributedOptions options;
    options.check_every = 1;
    DistributedOptimizer optimizer(world, model, options);
    for (int step = 0; step < 3; ++step) {
      optimizer.ZeroGradients();
      if (step == 1 && world.rank() == 2) model.value(0)[1] += 1e-6f;
      optimizer.Step();
    }
  });
  for (const std::string& text : texts)
    CHECK(text == "parameter 'p0' of rank 2 differs from rank 0 in step 1");
}

TEST_CASE("options that differ between ranks are an error on all ranks") {
  const Texts texts = OnRanks(3, [](Communicator& world) {
    Model model;
    DistributedOptions options;
    options.backward_passes_per_step = world.rank() == 1 ? 2 : 1;
    DistributedOptimizer optimizer(world, model, options);
  });
  for (const std::string& text : texts)
    CHECK_THAT(
        text, Contains("the ranks have different options of the optimizer: ") &&
                  Contains("backward_passes_per_step 1") && Contains("on ranks 0, 2") &&
                  Contains("backward_passes_per_step 2") && Contains("on rank 1"));
}

TEST_CASE("an invalid option is refused by name") {
  const auto refusal = [](const std::function<void(DistributedOptions&)>& set) {
    return OnRanks(1, [&](Communicator& world) {
      Model model;
      DistributedOptions options;
      set(options);
      DistributedOptimizer optimizer(world, model, options);
    })[0];
  };
  CHECK(refusal([](auto& o) {
          o.backward_passes_per_step = 0;
        }) == "DistributedOptimizer: backward_passes_per_step is 0; expected 1 or more");
  CHECK(refusal([](auto& o) {
          o.op = ReduceOp::kMax;
        }) == "DistributedOptimizer: the reduce op is max; expected average, sum or adasum");
  CHECK(refusal([](auto& o) {
          o.op = ReduceOp::kSum, o.gradient_predivide_factor = 2;
        }) == "DistributedOptimizer: gradient_predivide_factor needs the reduce op average");
  CHECK(refusal([](auto& o) {
          o.gradient_predivide_factor = 4096;
        }) == "gradients are scaled by 0.000244141; expected a factor in [1/1024, 1024]");
  CHECK_THAT(
      refusal([](auto& o) { o.max_gradient_norm = -1; }), Contains("max_gradient_norm is -1"));
  CHECK_THAT(refusal([](auto& o) { o.check_every = -1; }), Contains("check_every is -1"));
  CHECK(refusal([](auto& o) {
          o.local_parameters = {"p7"};
        }) == "local_parameters: the optimizer has no parameter 'p7'");
}

TEST_CASE("a gradient that is marked too often is refused with the call to make instead") {
  const auto marked = [](int passes, int times) {
    return OnRanks(1, [&](Communicator& world) {
      Model model;
      DistributedOptions options;
      options.backward_passes_per_step = passes;
      DistributedOptimizer optimizer(world, model, options);
      optimizer.ZeroGradients();
      for (int i = 0; i < times; ++i) optimizer.MarkReady(1);
    })[0];
  };
  CHECK(marked(2, 2) == "");
  CHECK_THAT(
      marked(1, 2), Contains("the gradient of 'p1' was marked ready more than once") &&
                        Contains("call Step() before"));
  CHECK_THAT(marked(2, 3), Contains("more than 2 times since the last step"));
}

TEST_CASE("ZeroGradients is refused while gradients are being reduced") {
  const Texts texts = OnRanks(2, [](Communicator& world) {
    Model model;
    DistributedOptimizer optimizer(world, model);
    optimizer.ZeroGradients();
    MarkAll(optimizer);
    try {
      optimizer.ZeroGradients();
    } catch (const Error& error) {
      optimizer.Step();
      throw;
    }
  });
  CHECK_THAT(texts[0], Contains("ZeroGradients() between the last backward pass and Step()"));
  CHECK(texts[0] == texts[1]);
}

TEST_CASE("a gradient reduced in 16 bits keeps its own type and gets rounded values") {
  const int size = GENERATE(1, 2, 4);
  CHECK(OnRanks(size, [](Communicator& world) {
          Model model({3, 40});
          DistributedOptions options;
          options.wire = Wire::kF16;
          DistributedOptimizer optimizer(world, model, options);
          optimizer.ZeroGradients();
          for (size_t k = 0; k < 40; ++k)
            model.gradient(1)[k] = 1 + static_cast<float>(k) / 4096;  // steps of f16: 1 / 1024
          MarkAll(optimizer);
          optimizer.Synchronize();
          for (size_t k = 0; k < 40; ++k) {
            const float cast = 1 + std::nearbyint(static_cast<float>(k) / 4) / 1024;  // to even
            Expect(model.gradient(1)[k] == cast, "the cast of element " + std::to_string(k));
          }
          Expect(model.parameters()[1].gradient.dtype == DType::kF32, "the type");
        }) == Nothing(size));
}

TEST_CASE("two optimizers in one process do not disturb each other") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model first({5}), second({300'000, 7});
          DistributedOptimizer one(world, first), other(world, second);
          for (int step = 1; step <= 3; ++step) {
            one.ZeroGradients(), other.ZeroGradients();
            first.Backward(static_cast<float>(world.rank()));
            second.Backward(static_cast<float>(4 * world.rank()));
            MarkAll(other), MarkAll(one);
            one.Step(), other.Step();
            Expect(first.value(0)[4] == -0.5f * static_cast<float>(step), "the one");
            Expect(second.value(0)[299'999] == -2.0f * static_cast<float>(step), "the other");
          }
        }) == Nothing(2));
}

}  // namespace
}  // namespace dtrun::testing
