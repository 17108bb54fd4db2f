"""Where training frameworks wait: functions of packages, as read in their sources, and what each waits for.

A wait that calls PyTorch's own communication ends in a frame of PyTorch, which `python_calls` knows. Here are the others:
functions that block in their own line (`handle.wait()`, `.item()`, `.cpu()`, an extension), where the frame of the framework is
the innermost that a stack shows. `read` says in which versions each was read; `tests/shared/diagnosis/packagewaits.py` reads them again.
"""

import re
from dataclasses import dataclass

from mldebug.capture.packages import FRAMEWORKS
from mldebug.core.model import Role
from mldebug.diagnosis.classify.tables.signs import B, FrameSign, I, W


@dataclass(frozen=True)
class PackageWait:
    """Functions in one file of a package that all wait for the same kind of thing."""

    package: str  # as it is installed
    read: str  # versions (or a commit) whose sources have all of these functions
    file: str  # below the folder of installed packages
    functions: tuple[str, ...]
    kind: str  # of KINDS
    operation: str = ""  # what they wait in; "": each by its own name
    top: bool = True  # it blocks in its own line; False: also in what it calls


KINDS: dict[str, tuple[str, Role, str]] = {
    "collective": ("collective", W, "waits in {op} at {site}"),
    "handle": ("collective", W, "waits for an asynchronous collective in {op} at {site}"),
    "transfer": ("point_to_point", W, "waits in {op} at {site}"),
    "device": ("device_sync", W, "waits for its GPU in {op} at {site}"),
    "store": ("store", W, "waits for a key of the store in {site}"),
    "init": ("init", W, "waits in {op} for the other ranks at {site}"),
    "destroy": ("destroy", W, "waits in {op} at {site}"),
    "compile": ("compile", B, "compiles in {site}"),
    "checkpoint": ("checkpoint", B, "saves or loads a checkpoint in {site}"),
    "data": ("dataloader", I, "waits for its DataLoader in {site}"),
    "future": ("future", I, "waits for a future in {site}"),
}
"""What a kind is called: the class, its role, and its phrase."""

ZERO = "deepspeed/runtime/zero"
FSDP = "torch/distributed/fsdp"
MCORE = "megatron/core"
_DS, _MC, _PT = "0.14.0, 0.19.8", "0.12.1, 0.16.1", "2.13.0"

PACKAGE_WAITS: tuple[PackageWait, ...] = (
    # DeepSpeed
    PackageWait("deepspeed", _DS, f"{ZERO}/partition_parameters.py", ("all_gather_coalesced", "_dist_allgather_fn", "_allgather_params_coalesced", "_allgather_param"), "collective", "all_gather"),
    PackageWait("deepspeed", _DS, f"{ZERO}/partition_parameters.py", ("wait",), "handle", "all_gather"),
    PackageWait("deepspeed", _DS, f"{ZERO}/partition_parameters.py", ("_reduce_scatter_gradients", "_reduce_scatter_gradient"), "collective", "reduce_scatter"),
    PackageWait("deepspeed", _DS, f"{ZERO}/partitioned_param_coordinator.py", ("fetch_sub_module", "release_and_reset_all"), "handle", "all_gather"),
    PackageWait("deepspeed", _DS, "deepspeed/runtime/comm/coalesced_collectives.py", ("reduce_scatter_coalesced", "all_to_all_quant_reduce", "_torch_reduce_scatter_fn"), "collective"),
    PackageWait("deepspeed", _DS, f"{ZERO}/stage3.py", ("complete_grad_norm_calculation_for_cpu_offload", "has_overflow", "independent_gradient_partition_epilogue", "__reduce_and_partition_ipg_grads", "get_grad_norm_direct"), "device"),
    PackageWait("deepspeed", _DS, f"{ZERO}/stage_1_and_2.py", ("complete_grad_norm_calculation_for_cpu_offload", "has_overflow", "independent_gradient_partition_epilogue", "allreduce_and_copy", "get_grad_norm_direct"), "device"),
    PackageWait("deepspeed", _DS, "deepspeed/runtime/utils.py", ("has_overflow", "get_grad_zeros", "get_weight_norm", "clip_grad_norm_"), "device"),
    PackageWait("deepspeed", _DS, "deepspeed/runtime/pipe/p2p.py", ("wait", "recv_obj", "send_obj"), "transfer"),
    PackageWait("deepspeed", _DS, "deepspeed/runtime/pipe/engine.py", ("_recv_tensor_meta",), "transfer", "recv"),
    PackageWait("deepspeed", _DS, "deepspeed/accelerator/cuda_accelerator.py", ("synchronize",), "device"),
    PackageWait("deepspeed", _DS, "deepspeed/utils/timer.py", ("start", "stop"), "device", "the timer"),
    PackageWait("deepspeed", _DS, "deepspeed/runtime/fp16/loss_scaler.py", ("to_python_float",), "device"),
    # PyTorch beside torch.distributed's own calls
    PackageWait("torch", _PT, f"{FSDP}/_flat_param.py", ("_all_gather_flat_param", "unshard_grad"), "collective", "all_gather"),
    PackageWait("torch", _PT, f"{FSDP}/_runtime_utils.py", ("_unshard", "_post_backward_final_callback", "_lazy_init"), "device"),
    PackageWait("torch", _PT, f"{FSDP}/_runtime_utils.py", ("_reduce_grad", "_reduce_grad_no_shard"), "collective", "reduce_scatter"),
    PackageWait("torch", _PT, f"{FSDP}/fully_sharded_data_parallel.py", ("clip_grad_norm_",), "device"),
    PackageWait("torch", _PT, f"{FSDP}/_fully_shard/_fsdp_collectives.py", ("foreach_all_gather", "foreach_all_gather_copy_out"), "collective", "all_gather"),
    PackageWait("torch", _PT, f"{FSDP}/_fully_shard/_fsdp_collectives.py", ("foreach_reduce",), "collective", "reduce_scatter"),
    PackageWait("torch", _PT, f"{FSDP}/_fully_shard/_fsdp_param_group.py", ("wait_for_unshard", "finalize_backward", "_wait_for_post_backward"), "device"),
    PackageWait("torch", _PT, f"{FSDP}/_fully_shard/_fsdp_state.py", ("_lazy_init",), "device"),
    PackageWait("torch", _PT, "torch/distributed/pipelining/schedules.py", ("_wait_batch_p2p",), "transfer", "recv"),
    PackageWait("torch", _PT, "torch/distributed/algorithms/join.py", ("notify_join_context", "_get_num_nonjoined_procs"), "device"),
    PackageWait("torch", _PT, "torch/nn/utils/clip_grad.py", ("clip_grad_norm_", "_get_total_norm", "_clip_grads_with_norm_"), "device"),
    PackageWait("torch", _PT, "torch/amp/grad_scaler.py", ("_maybe_opt_step", "get_scale", "_get_growth_tracker"), "device"),
    PackageWait("torch", _PT, "torch/_tensor.py", ("__format__", "__array__", "__contains__", "__iter__"), "device", "a read of a tensor"),
    # Megatron-Core
    PackageWait("megatron-core", _MC, f"{MCORE}/pipeline_parallel/p2p_communication.py", ("_communicate", "_communicate_shapes", "_p2p_ops", "_batched_p2p_ops"), "transfer", "recv or send"),
    PackageWait("megatron-core", _MC, f"{MCORE}/distributed/param_and_grad_buffer.py", ("start_param_sync", "finish_param_sync"), "handle", "all_gather"),
    PackageWait("megatron-core", _MC, f"{MCORE}/distributed/param_and_grad_buffer.py", ("start_grad_sync", "finish_grad_sync"), "handle", "reduce_scatter"),
    PackageWait("megatron-core", _MC, f"{MCORE}/optimizer/clip_grads.py", ("get_grad_norm_fp32", "count_zeros_fp32", "clip_grad_by_total_norm_fp32"), "device"),
    PackageWait("megatron-core", _MC, f"{MCORE}/optimizer/optimizer.py", ("_unscale_main_grads_and_check_for_nan",), "device"),
    PackageWait("megatron-core", _MC, f"{MCORE}/tensor_parallel/layers.py", ("backward",), "handle", "the backward pass"),
    PackageWait("megatron-core", _MC, f"{MCORE}/timers.py", ("start", "stop"), "device", "the timer"),
    PackageWait("megatron-core", "0.16.1", f"{MCORE}/transformer/moe/token_dispatcher.py", ("dispatch_postprocess", "token_dispatch", "token_combine"), "device"),
    PackageWait("megatron-core", _MC, f"{MCORE}/rerun_state_machine.py", ("is_unexpectedly_large",), "device"),
    PackageWait("megatron-core", _MC, f"{MCORE}/tensor_parallel/data.py", ("_build_key_size_numel_dictionaries", "broadcast_data"), "collective", "broadcast"),
    # accelerate, transformers, TRL
    PackageWait("accelerate", "1.15.0", "accelerate/accelerator.py", ("check_trigger", "clip_grad_norm_"), "device"),
    PackageWait("accelerate", "1.15.0", "accelerate/utils/random.py", ("synchronize_rng_state",), "collective", "broadcast"),
    PackageWait("accelerate", "1.15.0", "accelerate/utils/operations.py", ("_gpu_gather", "_gpu_gather_one", "_gpu_broadcast_one", "_pad_across_processes"), "device"),
    PackageWait("transformers", "5.24.0", "transformers/masking_utils.py", ("find_packed_sequence_indices",), "device"),
    PackageWait("transformers", "4.44.0, 5.24.0", "transformers/modeling_flash_attention_utils.py", ("_get_unpad_data",), "device"),
    PackageWait("transformers", "4.44.0, 5.24.0", "transformers/trainer.py", ("_maybe_log_save_evaluate", "store_flos"), "device"),
    PackageWait("transformers", "4.44.0, 5.24.0", "transformers/trainer_pt_utils.py", ("nested_numpify", "distributed_concat"), "device"),
    PackageWait("trl", "1.16.0", "trl/trainer/grpo_trainer.py", ("_compute_loss", "_generate_and_score_completions", "_get_per_token_logps_and_entropies", "_generate_single_turn"), "device"),
    PackageWait("trl", "1.16.0", "trl/trainer/dpo_trainer.py", ("_compute_loss",), "device"),
    PackageWait("trl", "1.16.0", "trl/trainer/sft_trainer.py", ("compute_loss",), "device"),
    # Lightning, NeMo, torchtitan, Composer
    PackageWait("lightning", "2.6.6", "lightning/fabric/utilities/apply_func.py", ("to_item",), "device"),
    PackageWait("pytorch-lightning", "1.9.5", "lightning_fabric/utilities/apply_func.py", ("to_item",), "device"),
    PackageWait("lightning", "2.6.6", "lightning/fabric/utilities/distributed.py", ("_gather_all_tensors", "_sync_ddp"), "device"),
    PackageWait("lightning", "2.6.6", "lightning/fabric/strategies/parallel.py", ("reduce_boolean_decision",), "device"),
    PackageWait("nemo-toolkit", "3.0.0", "nemo/utils/timers.py", ("start", "stop"), "device", "the timer"),
    PackageWait("nemo-toolkit", "3.0.0", "nemo/core/optim/optimizer_with_main_params.py", ("step",), "device"),
    PackageWait("torchtitan", "0.3.0", "torchtitan/distributed/utils.py", ("_dist_reduce", "set_determinism", "clip_grad_norm_", "_clip_grad_norm_with_ep"), "device"),
    PackageWait("torchtitan", "0.3.0", "torchtitan/models/common/token_dispatcher.py", ("_sync_token_count_exchange",), "device"),
    # Ray, verl, vLLM
    PackageWait("ray", "2.60.0", "ray/_private/worker.py", ("get_objects", "get", "wait"), "future", top=False),
    PackageWait("ray", "2.60.0", "ray/train/collective/collectives.py", ("broadcast_from_rank_zero", "barrier"), "collective", top=False),
    PackageWait("ray", "2.60.0", "ray/util/collective/collective_group/nccl_collective_group.py", ("barrier",), "collective"),
    PackageWait("verl", "0.9.1", "verl/utils/seqlen_balancing.py", ("rearrange_micro_batches",), "device"),
    PackageWait("verl", "0.9.1", "verl/utils/torch_functional.py", ("compute_grad_norm",), "device"),
    PackageWait("verl", "0.9.1", "verl/utils/profiler/performance.py", ("reduce_timing", "topk_reduce_ratio_min_max"), "device"),
    PackageWait("verl", "0.9.1", "verl/workers/engine/fsdp/transformer_impl.py", ("optimizer_step", "forward_backward_batch"), "device"),
    PackageWait("verl", "0.9.1", "verl/workers/engine/megatron/transformer_impl.py", ("postprocess_micro_batch_func",), "device"),
    PackageWait("vllm", "00264800f555", "vllm/distributed/device_communicators/shm_broadcast.py", ("acquire_read", "acquire_write", "dequeue", "wait_until_ready"), "collective", "a broadcast in shared memory", top=False),
    # Horovod
    PackageWait("horovod", "0.28.1", "horovod/torch/mpi_ops.py", ("synchronize", "join", "barrier"), "collective", "Horovod's operation"),
    PackageWait("horovod", "0.28.1", "horovod/common/basics.py", ("init",), "init"),
    PackageWait("horovod", "0.28.1", "horovod/common/basics.py", ("shutdown",), "destroy"),
    # JAX, Orbax, Levanter
    PackageWait("jax", "0.4.30, 0.10.2", "jax/_src/compiler.py", ("compile_or_get_cached",), "compile", top=False),
    PackageWait("jax", "0.4.30, 0.10.2", "jax/_src/distributed.py", ("initialize",), "init", "jax.distributed.initialize"),
    PackageWait("jax", "0.4.30, 0.10.2", "jax/_src/distributed.py", ("shutdown",), "destroy", "jax.distributed.shutdown"),
    PackageWait("jax", "0.4.30, 0.10.2", "jax/_src/xla_bridge.py", ("make_cpu_client", "_init_backend"), "init", "the exchange of devices", top=False),
    PackageWait("jax", "0.4.30, 0.10.2", "jax/experimental/multihost_utils.py", ("process_allgather", "sync_global_devices", "broadcast_one_to_all", "assert_equal", "reached_preemption_sync_point"), "collective", top=False),
    PackageWait("jax", "0.4.30, 0.10.2", "jax/experimental/array_serialization/serialization.py", ("_thread_func", "wait_until_finished"), "checkpoint", top=False),
    PackageWait("jax", "0.4.30, 0.10.2", "jax/_src/array.py", ("_value", "block_until_ready", "__array__", "tolist"), "device"),
    PackageWait("jax", "0.4.30, 0.10.2", "jax/_src/api.py", ("block_until_ready", "effects_barrier"), "device"),
    PackageWait("jax", "0.4.30, 0.10.2", "jax/_src/dispatch.py", ("wait_for_tokens", "block_until_ready"), "device"),
    PackageWait("orbax-checkpoint", "0.12.8", "orbax/checkpoint/_src/multihost/multihost.py", ("sync_global_processes", "broadcast_one_to_all"), "collective", top=False),
    PackageWait("levanter", "1.1", "levanter/utils/jax_utils.py", ("jnp_to_python",), "device"),
)  # fmt: skip


def _row(wait: PackageWait) -> FrameSign:
    name, role, phrase = KINDS[wait.kind]
    file = re.compile(rf"(?:.*/)?{re.escape(wait.file)}")
    functions = re.compile("|".join(map(re.escape, wait.functions)))
    return FrameSign(name, role, phrase, file, functions, wait.operation, wait.top)


_ANY = "|".join(sorted(map(re.escape, FRAMEWORKS), key=len, reverse=True))
_COLLECTIVE = (
    r"_?(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast)(?:_(?!parameters|optimizer)\w+)?|"
    r"(?:monitored_)?barrier|wait_for_everyone"
)

PACKAGE_CALLS: tuple[FrameSign, ...] = (
    *map(_row, PACKAGE_WAITS),
    # A wrapper of any framework that is named as the collective, where its own line blocks.
    FrameSign(*KINDS["collective"], re.compile(rf"(?:.*/)?(?:{_ANY}|torch/distributed)/.*\.py"), re.compile(_COLLECTIVE), "", True),
)  # fmt: skip
"""The rows in the order in which they are tried, after those of PyTorch's own calls."""
