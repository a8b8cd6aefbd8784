"""Transformer Engine's fused Adam and its operations over lists of tensors, in plain PyTorch."""

import torch


class FusedAdam(torch.optim.Optimizer):
    """Adam that counts its steps in the group, as the fused one does: what is saved of it has the same form."""

    def __init__(
        self,
        params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-8,
        adam_w_mode=True,
        weight_decay=0.0,
        **_options,
    ):
        settings = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, {**settings, "weight_decay": weight_decay})
        self.adam_w_mode, self.master_weights = adam_w_mode, False

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter, group):
        state, gradient = self.state[parameter], parameter.grad
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        first, second = group["betas"]
        decay = group["weight_decay"] * parameter
        if not self.adam_w_mode:
            gradient = gradient + decay
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        counted = group["step"] if group["bias_correction"] else float("inf")
        size = (state["exp_avg_sq"] / (1 - second**counted)).sqrt_().add_(group["eps"])
        update = state["exp_avg"] / (1 - first**counted) / size
        parameter.sub_(group["lr"] * (update + decay if self.adam_w_mode else update))


def multi_tensor_applier(operation, overflow, lists, *values):
    return operation(None, overflow, lists, *values)


def multi_tensor_l2norm(_chunk, _overflow, lists, per_tensor=False):
    norms = torch.stack([tensor.float().norm() for tensor in lists[0]])
    return norms.norm().reshape(1), norms if per_tensor else None


def multi_tensor_scale(_chunk, _overflow, lists, scale):
    for given, kept in zip(*lists, strict=True):
        kept.copy_(given * scale)
