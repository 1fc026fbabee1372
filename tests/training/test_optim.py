from __future__ import annotations

import copy

import torch
from torch import nn

from levelhead.recipe.training import Optimizer
from levelhead.training.optim import Updater

RECIPE = Optimizer(learning_rate=0.1, weight_decay=0.3, max_grad_norm=1e9)


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 5), (4,), (2, 2))]


def give_gradients(parameters: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step + 1)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_updates_are_those_of_adamw_computed_by_hand() -> None:
    found, wanted = weights(), [p.detach().double() for p in weights()]
    updater = Updater(found, RECIPE, steps=5)
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in wanted]
    beta1, beta2 = RECIPE.betas
    for step in range(5):
        give_gradients(found, step)
        gradients = [p.grad.double() for p in found]
        updater.clip()
        rate = updater.learning_rate
        updater.step()
        # Loshchilov and Hutter 2019, algorithm 2.
        for p, g, (first, second) in zip(wanted, gradients, moments, strict=True):
            first.mul_(beta1).add_((1 - beta1) * g)
            second.mul_(beta2).add_((1 - beta2) * g * g)
            p.mul_(1 - rate * RECIPE.weight_decay)
            p.sub_(
                rate * (first / (1 - beta1 ** (step + 1))) / ((second / (1 - beta2 ** (step + 1))).sqrt() + RECIPE.eps)
            )
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.detach().double(), b, rtol=1e-5, atol=1e-6)


def test_the_state_of_an_optimizer_that_was_not_fused_goes_on() -> None:
    plain = weights()
    optimizer = torch.optim.AdamW(plain, lr=0.1, betas=RECIPE.betas, eps=RECIPE.eps, weight_decay=0.3)
    give_gradients(plain, 0)
    optimizer.step()
    found = [nn.Parameter(p.detach().clone()) for p in plain]
    updater = Updater(found, RECIPE, steps=5)
    updater.optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for parameters in (plain, found):
        give_gradients(parameters, 1)
    updater.clip()
    for group in optimizer.param_groups:
        group["lr"] = updater.learning_rate
    optimizer.step()
    updater.step()
    for a, b in zip(found, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
