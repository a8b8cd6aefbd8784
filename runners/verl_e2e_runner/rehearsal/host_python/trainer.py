"""One rank of a cell: Bridge and Megatron-LM driven as verl drives them, and what they gave, for the record.

Everything that is recorded lies in two dictionaries: `values` (numbers, words, lists) and `tensors`, by name. A name
begins with the moment (`start`, `step1`), so that the first that differs between two trees is near the cause.
"""

import contextlib
import dataclasses
import enum
import hashlib
import io
import json
import logging.handlers
import os
import queue
import warnings
from functools import partial
from pathlib import Path

import models
import torch
import yaml
from megatron.bridge import AutoBridge
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelLoadStrategyWrapper,
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy, TorchDistSaveShardedStrategy
from megatron.core.distributed import DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import (
    gather_from_sequence_parallel_region,
    gather_from_tensor_model_parallel_region,
    model_parallel_cuda_manual_seed,
)
from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from megatron.core.utils import unwrap_model
from safetensors.torch import load_file

SEED = 42
STEPS = 2
MICRO_BATCH = 2
_LEARNING_RATE = 0.05
# So large that an update is as good as proportional to its gradient: noise of rounding is not made a step of full size.
EPSILON = 1.0


class Rank:
    """The process of a rank: builds the model when it is made."""

    def __init__(self, cell, folder, rank, store, again):
        self.cell, self.folder, self.again = cell, str(folder), again
        self.values, self.tensors = {}, {}
        torch.distributed.init_process_group("gloo", rank=rank, world_size=cell.ranks, store=store)
        mpu.initialize_model_parallel(
            tensor_model_parallel_size=cell.tp,
            pipeline_model_parallel_size=cell.pp,
            virtual_pipeline_model_parallel_size=cell.vpp or None,
            context_parallel_size=cell.cp,
            expert_model_parallel_size=cell.ep,
            expert_tensor_parallel_size=cell.etp or None,
        )
        model_parallel_cuda_manual_seed(SEED)
        self.values["place"] = {
            "dp": mpu.get_data_parallel_rank(),
            "tp": mpu.get_tensor_model_parallel_rank(),
            "pp": mpu.get_pipeline_model_parallel_rank(),
            "cp": mpu.get_context_parallel_rank(),
            "ep": mpu.get_expert_model_parallel_rank(),
            "etp": mpu.get_expert_tensor_parallel_rank(),
            "edp": mpu.get_expert_data_parallel_rank(),
        }

    def resume(self, checkpoint):
        """What a new process makes of a checkpoint: the state that it loads, and the step after it."""
        self.build()
        self.data = models.batch(self.vocabulary)
        load_model(self, checkpoint)
        if self.cell.loaded_in:
            # verl's form of the optimizer's state cannot be loaded in another layout.
            self.export("loaded")
            return
        # Before the optimizer is loaded, which hides what is wrong with them.
        self.keep("loaded/parameters")
        load_optimizer(self, checkpoint)
        self.keep_optimizer("loaded")
        self.train(STEPS, "resumed")

    def run(self, checkpoint):
        """All that a cell does, up to its last step."""
        self.build()
        self.export("start")
        if self.cell.written:
            self.write(checkpoint.with_name("written"))
        data = self.data = models.batch(self.vocabulary)
        if not self.cell.trained:
            return
        logits = self.logits(data)
        if logits is not None:
            self.tensors["start/logits"] = logits
        for step in range(1, STEPS + 1):
            self.train(step, f"step{step}")
            if step == 1:
                self.export("step1")
                if self.cell.resumed:
                    save_checkpoint(self, checkpoint)

    def build(self):
        """The model with its adapters in Megatron-LM's wrapper for data parallel training, and its optimizer."""
        cell = self.cell
        self.bridge = AutoBridge.from_hf_pretrained(self.folder)
        provider = self.bridge.to_megatron_provider(load_weights=False)
        self.vocabulary = self.bridge.hf_pretrained.config.get_text_config().vocab_size
        self.values["provider"] = described(provider)
        finalize(provider, torch.float32, self.overrides(provider))
        self.values["provider_final"] = described(provider)
        self.adapters = adapter_of(cell.adapter)
        if self.adapters is not None:
            if cell.adapter["type"] == "dora":
                # Its magnitudes are those of the weights that are there when it adapts.
                provider.register_pre_wrap_hook(self.loaded)
            provider.register_pre_wrap_hook(partial(adapt, self.adapters))
        distributed = cell.distributed_optimizer
        ddp = DistributedDataParallelConfig(
            use_distributed_optimizer=distributed, grad_reduce_in_fp32=True, overlap_grad_reduce=cell.overlapped
        )
        self.model = provider.provide_distributed_model(ddp_config=ddp, wrap_with_ddp=True, fp16=False, bf16=False)
        if cell.adapter.get("type") != "dora":
            self.bridge.load_hf_weights(self.model)
        config = self.config = unwrap_model(self.model[0]).config
        if self.adapters is not None and cell.filled and not self.again:
            self.fill()
        settings = OptimizerConfig(
            optimizer="adam",
            lr=_LEARNING_RATE,
            min_lr=_LEARNING_RATE,
            adam_eps=EPSILON,
            clip_grad=1000.0,
            weight_decay=0.01,
            use_distributed_optimizer=distributed,
            bf16=False,
            params_dtype=torch.float32,
        )
        self.optimizer = None
        if any(parameter.requires_grad for chunk in self.model for parameter in chunk.parameters()):
            self.optimizer = get_megatron_optimizer(config=settings, model_chunks=self.model)
            config.grad_scale_func = self.optimizer.scale_loss
            self.scheduler = OptimizerParamScheduler(
                self.optimizer,
                init_lr=0.0,
                max_lr=_LEARNING_RATE,
                min_lr=0.0,
                lr_warmup_steps=0,
                lr_decay_steps=10,
                lr_decay_style="linear",
                start_wd=0.01,
                end_wd=0.01,
                wd_incr_steps=10,
                wd_incr_style="constant",
            )
        config.finalize_model_grads_func = finalize_model_grads
        if cell.overlapped:
            # As verl registers them: gradients are summed during the last micro batch alone.
            functions = [(chunk.no_sync, chunk.start_grad_sync) for chunk in self.model]
            config.no_sync_func, config.grad_sync_func = (
                functions[0] if len(functions) == 1 else zip(*functions, strict=True)
            )
        self.keep("start/parameters")
        self.values["start/trains"] = sorted(n for n, p in self.named_parameters() if p.requires_grad)
        self.values["cut"] = sorted(n for n, p in self.named_parameters() if getattr(p, "tensor_model_parallel", False))
        self.values["start/attributes"] = {
            name: {mark: described_value(getattr(p, mark)) for mark in ATTRIBUTES if hasattr(p, mark)}
            for name, p in self.named_parameters()
        }

    def overrides(self, provider):
        """What verl sets whatever the model is, the cell's own settings, and what has no form on a CPU."""
        cell = self.cell
        chosen = {
            "tensor_model_parallel_size": cell.tp,
            "pipeline_model_parallel_size": cell.pp,
            "virtual_pipeline_model_parallel_size": cell.vpp or None,
            "context_parallel_size": cell.cp,
            "expert_model_parallel_size": cell.ep,
            "expert_tensor_parallel_size": cell.etp or cell.tp,
            "sequence_parallel": cell.sequence_parallel,
            "overlap_p2p_comm": cell.vpp > 1,
            "batch_p2p_comm": False,
            "variable_seq_lengths": True,
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_load_balancing_type": "none",
            "moe_router_dtype": "fp32",
            "gradient_accumulation_fusion": False,
            "moe_permute_fusion": False,
            "apply_rope_fusion": False,
            "pipeline_dtype": torch.float32,
            **of_recipe(json.loads(Path(self.folder, models.RECIPE).read_text())["overrides"]),
            **cell.settings,
        }
        return {name: value for name, value in chosen.items() if hasattr(provider, name)}

    def loaded(self, model):
        """Load the weights into a model that is not wrapped yet."""
        self.bridge.load_hf_weights(model)
        return model

    def fill(self):
        """Draw the adapters whole, and keep this rank's part: every layout trains the same ones."""
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                with torch.no_grad():
                    parameter.copy_(self.part_of_adapter(name, parameter))

    def part_of_adapter(self, name, parameter):
        """This rank's part of a matrix of an adapter."""
        place, expert = self.values["place"], ".experts." in name
        axis = parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None
        peers, rank = (self.cell.etp or self.cell.tp, place["etp"]) if expert else (self.cell.tp, place["tp"])
        shape = list(parameter.shape)
        if axis is not None:
            shape[axis] *= peers
        if parameter.dim() == 3:
            # One matrix for each of the rank's experts.
            shape[0] *= self.cell.ep
        digest = hashlib.sha256(name.partition(".")[2].encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big") + models.SEED)
        whole = torch.randn(shape, generator=generator) * 0.1
        if parameter.dim() == 3:
            whole = whole.chunk(self.cell.ep)[place["ep"]]
        if axis is None:
            return whole
        fused = "linear_fc1.adapter.linear_out" in name and self.config.gated_linear_unit
        # A rank has its part of the gate above its part of the other half.
        halves = whole.chunk(2, axis) if fused else [whole]
        return torch.cat([half.chunk(peers, axis)[rank] for half in halves], axis)

    def named_parameters(self):
        """Each parameter by its virtual stage and its name, with the layer's number in the whole model."""
        for number, chunk in enumerate(self.model):
            inner = unwrap_model(chunk)
            layers = getattr(getattr(inner, "decoder", None), "layers", ())
            numbers = {f"decoder.layers.{place}.": layer.layer_number - 1 for place, layer in enumerate(layers)}
            for name, parameter in inner.named_parameters():
                start = next((start for start in numbers if name.startswith(start)), None)
                if start is not None:
                    name = f"decoder.layers.{numbers[start]}.{name.removeprefix(start)}"  # noqa: PLW2901
                yield f"{number}.{name}", parameter

    def keep(self, moment):
        """Note all parameters of the rank as they are."""
        for name, parameter in self.named_parameters():
            self.tensors[f"{moment}/{name}"] = parameter.detach().clone()

    def export(self, moment):
        """What the rollout engine gets: the whole model with merged adapters, and the base and the adapters apart."""
        before = {name: parameter.detach().clone() for name, parameter in self.named_parameters()}
        for chunk in self.model:
            chunk.eval()
        whole = partial(self.bridge.export_hf_weights, self.model, cpu=True, show_progress=False)
        exports = {"export": whole} if self.cell.merged else {}
        if self.adapters is not None and self.cell.adapter["type"] != "dora":
            exports["base"] = partial(whole, merge_adapter_weights=False)
            exports["adapters"] = partial(self.bridge.export_adapter_weights, self.model, show_progress=False)
        for part, export in exports.items():
            names = []
            for key, tensor in export():
                names.append(key)
                self.tensors[f"{moment}/{part}/{key}"] = tensor.detach().clone()
            self.values[f"{moment}/{part}/twice"] = sorted({key for key in names if names.count(key) > 1})
        for chunk in self.model:
            chunk.train()
        after = dict(self.named_parameters())
        self.values[f"{moment}/changed_by_export"] = [
            name
            for name, tensor in before.items()
            # In any bit.
            if name not in after
            or (tensor.shape, tensor.dtype) != (after[name].shape, after[name].dtype)
            or not torch.equal(tensor, after[name])
        ]

    def write(self, folder):
        """Write the model and its adapters as files that transformers and PEFT load, and note what is in them."""
        self.bridge.save_hf_pretrained(self.model, str(folder / "model"), show_progress=False)
        if self.adapters is not None:
            self.bridge.save_hf_adapter(self.model, str(folder / "adapters"), self.adapters, show_progress=False)
        torch.distributed.barrier()
        for file in sorted(folder.rglob("*")):
            name = f"start/written/{file.relative_to(folder)}"
            if file.suffix == ".safetensors":
                self.tensors |= {f"{name}/{key}": tensor for key, tensor in load_file(file).items()}
            elif file.suffix == ".json" and "token" not in file.name:
                self.values[name] = json.loads(file.read_text())
            elif file.is_file():
                self.values[name] = file.stat().st_size

    def micro_batches(self, data):
        """This rank's part of the data, in micro batches."""
        size, rank = mpu.get_data_parallel_world_size(), mpu.get_data_parallel_rank()
        rows = range(rank * models.SEQUENCES // size, (rank + 1) * models.SEQUENCES // size)
        parts = [list(rows)[start : start + MICRO_BATCH] for start in range(0, len(rows), MICRO_BATCH)]
        return [{name: tensor[part][:, self.columns()] for name, tensor in data.items()} for part in parts]

    def columns(self):
        """The places in a sequence that this context-parallel rank has: a piece from its start, one from its end."""
        pieces = torch.arange(models.TOKENS).chunk(2 * self.cell.cp)
        rank = mpu.get_context_parallel_rank()
        return torch.cat([pieces[rank], pieces[-1 - rank]]) if self.cell.cp > 1 else slice(None)

    def forward(self, iterator, model):
        """One micro batch through the rank's part of the model, and the function of its loss."""
        part = next(iterator)
        given = model(input_ids=part["tokens"], position_ids=part["positions"], attention_mask=None)
        given = given[0] if isinstance(given, tuple) else given
        return given, partial(self.loss, part)

    def loss(self, part, logits):
        """The share of a micro batch in the mean loss of all tokens, as Megatron-LM's schedule wants it."""
        lost = vocab_parallel_cross_entropy(
            logits.float().transpose(0, 1).contiguous(), part["next"].transpose(0, 1).contiguous()
        ).transpose(0, 1)
        share = (lost * part["weights"]).sum() / self.data["weights"].sum()
        parts = len(self.micro_batches(self.data)) * mpu.get_data_parallel_world_size()
        return share * parts, {"loss": share.detach()}

    def schedule(self, batches, loss=None, forward_only=False):
        """All micro batches through Megatron-LM's own schedule."""
        forward = self.forward

        def step(iterator, model):
            given, usual = forward(iterator, model)
            return given, loss or usual

        iterators = [iter(batches) for _ in self.model]
        return get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=self.model,
            num_microbatches=len(batches),
            seq_length=models.TOKENS,
            micro_batch_size=MICRO_BATCH,
            forward_only=forward_only,
        )

    def logits(self, data):
        """Logits of the first two sequences, on the rank that has them whole; None on others."""

        def collected(logits):
            whole = gather_from_tensor_model_parallel_region(logits.detach().contiguous())
            if self.cell.cp > 1:
                group = mpu.get_context_parallel_group()
                places = gather_from_sequence_parallel_region(self.columns(), group=group)
                whole = gather_from_sequence_parallel_region(whole.transpose(0, 1).contiguous(), group=group)
                whole = whole[places.argsort()].transpose(0, 1)
            return torch.zeros(()), {"logits": whole}

        first = [{name: tensor[:MICRO_BATCH][:, self.columns()] for name, tensor in data.items()}]
        if self.cell.vpp:
            first *= self.cell.pp
        for chunk in self.model:
            chunk.eval()
        with torch.no_grad():
            found = self.schedule(first, collected, forward_only=True)
        for chunk in self.model:
            chunk.train()
        kept = found and mpu.get_tensor_model_parallel_rank() == 0 and mpu.get_data_parallel_rank() == 0
        return found[0]["logits"].float()[..., : self.vocabulary] if kept else None

    def train(self, step, moment):
        """One step of training, on sequences of its own."""
        data = {name: tensor.roll(step, 0) for name, tensor in self.data.items()}
        for chunk in self.model:
            chunk.zero_grad_buffer()
        if self.optimizer is None:
            with torch.no_grad():
                found = self.schedule(self.micro_batches(data), forward_only=True)
        else:
            self.optimizer.zero_grad()
            found = self.schedule(self.micro_batches(data))
        loss = torch.zeros(1, dtype=torch.float64)
        for part in found:
            loss += part["loss"].double()
        if self.cell.pp > 1:
            torch.distributed.all_reduce(loss, group=mpu.get_pipeline_model_parallel_group())
        torch.distributed.all_reduce(loss, group=mpu.get_data_parallel_group(with_context_parallel=True))
        self.values[f"{moment}/loss"] = float(loss)
        if self.optimizer is None:
            return
        self.values[f"{moment}/without_gradient"] = sorted(
            name
            for name, parameter in self.named_parameters()
            if parameter.requires_grad and not bool(parameter.main_grad.any())
        )
        _succeeded, norm, _zeros = self.optimizer.step()
        self.values[f"{moment}/grad_norm"] = float(norm)
        self.scheduler.step(1)
        self.keep(f"{moment}/parameters")
        self.keep_optimizer(moment)

    def keep_optimizer(self, moment):
        """Note the optimizer's moments, by the order in which it holds them, its steps and its learning rate."""
        optimizers = getattr(self.optimizer, "chained_optimizers", [self.optimizer])
        for number, optimizer in enumerate(optimizers):
            groups = optimizer.optimizer.param_groups
            self.values[f"{moment}/optimizer/{number}"] = [
                {name: described_value(value) for name, value in group.items() if name != "params"} for group in groups
            ]
            for place, state in enumerate(optimizer.optimizer.state.values()):
                for name, tensor in state.items():
                    if torch.is_tensor(tensor):
                        self.tensors[f"{moment}/optimizer/{number}.{place}.{name}"] = tensor.detach().clone()


def of_recipe(overrides):
    """What a family's recipe has verl set of Megatron-LM's configuration."""
    settings = (text.partition(".override_transformer_config.")[2].partition("=") for text in overrides)
    return {name: yaml.safe_load(value) for name, _, value in settings if name}


def finalize(provider, dtype, overrides):
    """Set what a trainer sets, as verl does it with this Bridge and with older ones."""
    if hasattr(provider, "apply_overrides_and_finalize"):
        provider.apply_overrides_and_finalize(dtype=dtype, overrides=overrides)
        return
    provider.params_dtype, provider.fp16, provider.bf16 = dtype, False, False
    for name, value in overrides.items():
        setattr(provider, name, value)
    provider.finalize()


def adapter_of(settings):
    """Bridge's object for the adapters; None where every parameter trains."""
    if not settings:
        return None
    try:
        from megatron.bridge.peft.utils import create_peft
    except ImportError:
        # Before Bridge had it, a consumer named the class.
        from megatron.bridge.peft import canonical_lora, dora, lora

        kinds = {"lora": lora.LoRA, "canonical_lora": canonical_lora.CanonicalLoRA, "dora": dora.DoRA}
        named = {"dim" if name == "rank" else name: value for name, value in settings.items() if name != "type"}
        return kinds[settings["type"]](**named)
    return create_peft(settings, dtype=torch.float32)


def adapt(adapters, model):
    """The hook by which a model gets its adapters before it is wrapped."""
    try:
        from megatron.bridge.peft.utils import create_peft_hook
    except ImportError:
        return adapters(model, training=True)
    return create_peft_hook(adapters, training=True)(model)


def described(config):
    """The fields of a configuration that can be written down."""
    return {
        item.name: described_value(getattr(config, item.name))
        for item in dataclasses.fields(config)
        if not item.name.startswith("_") and hasattr(config, item.name)
    }


def described_value(value):
    """A value of a configuration as JSON: what has no such form by its kind and name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, (list, tuple)):
        return [described_value(item) for item in value]
    if isinstance(value, dict):
        return {str(name): described_value(item) for name, item in value.items()}
    if isinstance(value, partial):
        return f"partial {described_value(value.func)}"
    if isinstance(value, torch.dtype):
        return str(value)
    return getattr(value, "__qualname__", f"a {type(value).__qualname__}")


# By these marks of a parameter Megatron-LM decides over which ranks it sums its gradient, and counts its norm.
ATTRIBUTES = (
    *("tensor_model_parallel", "partition_dim", "partition_stride", "sequence_parallel", "allreduce", "shared"),
    *("shared_embedding", "is_embedding_parameter", "average_gradients_across_tp_domain"),
    "is_embedding_or_output_parameter",
)


# Checkpoints are saved and loaded as verl's manager does it, in Megatron-LM's distributed form: the whole model, or its
# adapters alone where it has any; the optimizer with its scheduler in another folder.

# What verl writes for the distributed optimizer.
_METADATA = {
    "distrib_optim_sharding_type": "dp_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}


def save_checkpoint(rank, folder):
    """Save the rank's part of the model and of the optimizer."""
    # In its place Megatron-LM starts a process that imports everything again and outlives the rank.
    filesystem_async._results_queue = queue.Queue()
    model = model_state(rank)
    for name, state in (("model", filtered(rank, model)), ("optimizer", optimizer_state(rank, model))):
        place = folder / name
        if torch.distributed.get_rank() == 0:
            place.mkdir(parents=True)
        torch.distributed.barrier()
        strategy = TorchDistSaveShardedStrategy(backend="torch_dist", version=1)
        strategy = FullyParallelSaveStrategyWrapper(strategy, mpu.get_data_parallel_group(with_context_parallel=True))
        dist_checkpointing.save(state, str(place), sharded_strategy=strategy, content_metadata=_METADATA)
    torch.distributed.barrier()


@torch.no_grad()
def load_model(rank, folder):
    """Load the model, or its adapters, that `save_checkpoint` left."""
    loaded = read_checkpoint(filtered(rank, model_state(rank)), folder / "model")
    for name, chunk in stages(rank):
        chunk.load_state_dict(loaded[name], strict=rank.adapters is None)


@torch.no_grad()
def load_optimizer(rank, folder):
    """Load the optimizer, which sets the model's parameters to its own copy of them."""
    found = read_checkpoint(optimizer_state(rank, model_state(rank), is_loading=True), folder / "optimizer")
    rank.optimizer.load_state_dict(found["optimizer"])
    rank.scheduler.load_state_dict(found["lr_scheduler"])


def read_checkpoint(state, place):
    strategy = TorchDistLoadShardedStrategy()
    strategy = FullyParallelLoadStrategyWrapper(strategy, mpu.get_data_parallel_group(with_context_parallel=True))
    return dist_checkpointing.load(state, str(place), sharded_strategy=strategy)


def model_state(rank):
    """The sharded state of each virtual stage."""
    metadata = {**_METADATA, "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True)}
    return {name: chunk.module.sharded_state_dict(metadata=metadata) for name, chunk in stages(rank)}


def stages(rank):
    """The model of each virtual stage, by its name in a checkpoint, while Megatron-LM takes it for the current one."""
    for number, chunk in enumerate(rank.model):
        mpu.set_virtual_pipeline_model_parallel_rank(number)
        yield "model" if len(rank.model) == 1 else f"model{number}", chunk


def filtered(rank, state):
    """The adapters alone, by Bridge's own filter, where there are any."""
    if rank.adapters is None:
        return dict(state)
    from megatron.bridge.training.checkpointing import apply_peft_adapter_filter_to_state_dict

    return apply_peft_adapter_filter_to_state_dict(dict(state), rank.adapters)


def optimizer_state(rank, model, **options):
    state = rank.optimizer.sharded_state_dict(model, metadata=dict(_METADATA), **options)
    return {"optimizer": state, "lr_scheduler": rank.scheduler.state_dict()}


def run_rank(cell, folder, rank, store, place, again):
    """Run one rank and leave what it gave in a file; `again` is the process that resumes."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(cell.ranks), "LOCAL_RANK": str(rank)}
    said, printed = logging.handlers.BufferingHandler(10_000), io.StringIO()
    said.setLevel(logging.WARNING)
    logging.getLogger("megatron").addHandler(said)
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        made = Rank(cell, folder, rank, store, again)
        (made.resume if again else made.run)(place / "checkpoint")
    found = [f"{item.category.__name__}: {item.message}" for item in caught]
    found += [f"{record.name}: {record.getMessage()}" for record in said.buffer]
    found += [line for line in printed.getvalue().splitlines() if "WARNING" in line]
    if not again:
        made.values["warnings"] = sorted({line.replace(str(folder), "MODEL")[:300] for line in found})
    torch.save({"values": made.values, "tensors": made.tensors}, place / f"{rank}{'-resumed' if again else ''}.pt")
