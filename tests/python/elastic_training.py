"""A training that prints the sum of its parameters at the end. On the first start of rank VICTIM, it is killed in step 20."""
import os
import signal

import torch

import dtrun
import dtrun.torch as hvd

STEPS = 40


def main():
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(range(1000))
    state = hvd.elastic.TorchState(model, optimizer, step=0, sampler=sampler)
    killed = os.path.exists("killed")
    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(state.step)
        assert len(sampler) == len(list(sampler)) == -(-(1000 - state.step * hvd.size()) // hvd.size())
        while state.step < STEPS:
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(state.step * hvd.size() + hvd.rank()))
            optimizer.zero_grad()
            (model(x) - x[:, :2]).pow(2).mean().backward()
            if state.step == 20 and os.environ.get("VICTIM") == str(hvd.rank()) and not killed:
                open("killed", "x").close()
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            sampler.record_batch(state.step, 1)
            state.step += 1
            state.commit()

    train(state)
    print(f"called at {calls}, sum {sum(parameter.double().sum().item() for parameter in model.parameters()):.12f}")


main()
