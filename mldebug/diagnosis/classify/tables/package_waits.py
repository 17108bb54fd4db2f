"""Where training frameworks wait: functions of packages, as read in their sources, and what each waits for.

A wait that calls PyTorch's communication ends in a frame of PyTorch, which `python_calls` has. Here
are functions that block in their own line (`handle.wait()`, `.item()`, `.cpu()`, an extension),
where the framework's frame is the innermost. `read` names the versions whose source was read;
`tests/shared/diagnosis/packagewaits.py` compares the table with the sources again.
"""

import re
from dataclasses import dataclass

from mldebug.capture.packages import FRAMEWORKS
from mldebug.core.model import Role
from mldebug.diagnosis.classify.tables.signs import B, FrameSign, I, LatePattern, W


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
    gone: bool = False  # versions newer than those read no longer have it


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
    PackageWait("torch", _PT, "torch/utils/tensorboard/_convert_np.py", ("_prepare_pytorch",), "device", "a read of a tensor"),
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
    # What only copies a batch to its GPU, in its own line: it blocks where the GPU is still in an earlier collective
    PackageWait("accelerate", "1.15.0", "accelerate/utils/operations.py", ("send_to_device",), "device", "a copy of the batch to it"),
    PackageWait("transformers", "5.24.0", "transformers/trainer.py", ("_prepare_input",), "device", "a copy of the batch to it"),
    PackageWait("lightning", "2.6.6", "lightning/fabric/utilities/apply_func.py", ("batch_to",), "device", "a copy of the batch to it"),
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
    PackageWait("ray", "2.60.0", "ray/train/v2/_internal/execution/collective_impl.py", ("barrier", "broadcast_from_rank_zero"), "collective", top=False),
    PackageWait("ray", "2.60.0", "ray/train/v2/_internal/execution/context.py", ("_sync_checkpoint_dir_name_across_ranks",), "collective", "ray.train.report", top=False),
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
    PackageWait("jax", "0.10.2", "jax/_src/compiler.py", ("_share_fdo_profiles", "_compile_and_share_module"), "store"),  # of process 0, which compiles
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
    # What `packagecallers.py` found besides, package by package
    PackageWait("accelerate", "1.15.0", "accelerate/utils/operations.py", ("_neuron_gather_object", "_neuron_broadcast_object_list"), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/comm/torch.py", ("wait",), "handle"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/compile/backend.py", ("_sync_memory_profile_complete",), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/compile/passes/offload_activation.py", ("_memory_budget", "_agree_on_floor_peak"), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/compile/passes/prefetch.py", ("schedule_prefetch",), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/compile/passes/selective_gather.py", ("selective_gather",), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/compile/passes/zero3_compile.py", ("_reduce_int", "_sync_profile_complete", "_validate_final_schedule_fingerprint"), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/compile/profilers/comm_profile.py", ("timed_all_gather",), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/compile/profilers/graph_profile.py", ("_abort_if_any_rank_failed", "_rank_max_profile_memory", "run_node"), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/compile/util.py", ("pad_tensors",), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/module_inject/auto_ep_layer.py", ("_split_plan_from_expert_counts",), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/module_inject/layers.py", ("backward",), "handle"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/runtime/activation_checkpointing/checkpointing.py", ("gather_partitioned_activations",), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/runtime/data_pipeline/data_sampling/data_analyzer.py", ("run_map_reduce", "file_write_ordered", "min_max", "gather_v", "sample_sort"), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/runtime/data_pipeline/data_sampling/data_sampler.py", ("get_next_global_batch",), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/runtime/domino/transformer.py", ("backward",), "handle"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/runtime/pipe/dualpipev.py", ("_exec_commit_p2p",), "transfer"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/runtime/sequence_parallel/ulysses_sp.py", ("refill",), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/runtime/utils.py", ("get_norm_with_moe_layers_fast", "get_flattened_grad_norm", "check_using_norm"), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/runtime/zenflow/engine_stage3.py", ("update_selected_channels",), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/runtime/zero/partition_parameters.py", ("_exit",), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/runtime/zero/partitioned_param_coordinator.py", ("_clean_inflight_param_registry",), "handle"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/runtime/zero/stage3.py", ("_muon_update_sub_group",), "handle"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/runtime/zero/utils.py", ("assert_lst_len_same_as_other_ranks", "get_lst_from_rank0"), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/sequence/cross_entropy.py", ("_validate_vocab_shard_bounds", "_resolve_vocab_metadata", "vocab_parallel_cross_entropy"), "device"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/sequence/layer.py", ("hook_fun",), "handle"),
    PackageWait("deepspeed", "0.19.8", "deepspeed/sequence/linear_cross_entropy.py", ("vocab_parallel_linear_cross_entropy",), "device"),
    PackageWait("horovod", "0.28.1", "horovod/_keras/callbacks.py", ("_average_metrics_in_place",), "device"),
    PackageWait("jax", "0.10.2", "jax/_src/api.py", ("try_to_block",), "device"),
    PackageWait("jax", "0.10.2", "jax/_src/array.py", ("_token_shard_arg",), "device"),
    PackageWait("jax", "0.10.2", "jax/_src/core.py", ("block_until_ready",), "device"),
    PackageWait("jax", "0.10.2", "jax/_src/earray.py", ("block_until_ready",), "device"),
    PackageWait("jax", "0.10.2", "jax/_src/random/prng.py", ("block_until_ready",), "device"),
    PackageWait("jax", "0.10.2", "jax/experimental/array_serialization/pytree_serialization.py", ("_sync_on_key",), "store"),
    PackageWait("jax", "0.10.2", "jax/experimental/sparse/_base.py", ("block_until_ready",), "device"),
    PackageWait("levanter", "1.1", "levanter/utils/jax_utils.py", ("multihost_broadcast_sync",), "store"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/datasets/data_schedule.py", ("get_global_seqlens",), "device"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/dist_checkpointing/strategies/async_utils.py", ("maybe_finalize_async_calls",), "device"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/dist_checkpointing/strategies/state_dict_saver.py", ("verify_global_md_reuse",), "device"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/distributed/reduce_scatter_with_fp32_accumulation.py", ("wait",), "handle"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/optimizer/distrib_optimizer.py", ("get_parameter_state_dp_zero",), "device"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/optimizer/qk_clip.py", ("clip_qk",), "device"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/pipeline_parallel/bridge_communicator.py", ("recv_forward", "recv_backward", "send_forward_recv_backward", "send_backward_recv_forward", "_communicate_shapes"), "transfer"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/pipeline_parallel/hybrid_cp_schedule.py", ("hybrid_context_parallel_forward_backward",), "device"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/pipeline_parallel/schedules.py", ("forward_backward_pipelining_with_interleaving", "pp_pre_forward", "pp_post_forward", "pp_pre_backward", "pp_post_backward"), "transfer"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/rerun_state_machine.py", ("_reduce_any",), "device"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/utils.py", ("check_param_hashes_across_dp_replicas", "_check_toggle"), "device"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/utils.py", ("drain_embedding_wgrad_compute",), "handle"),
    PackageWait("nemo-toolkit", "3.0.0", "nemo/collections/asr/modules/conformer_encoder.py", ("update_max_seq_length",), "device"),
    PackageWait("nemo-toolkit", "3.0.0", "nemo/collections/asr/modules/conv_asr.py", ("update_max_sequence_length",), "device"),
    PackageWait("nemo-toolkit", "3.0.0", "nemo/collections/asr/modules/transformer_encoder.py", ("update_max_seq_length",), "device"),
    PackageWait("orbax-checkpoint", "0.12.8", "orbax/checkpoint/_src/checkpoint_managers/save_decision_policy.py", ("should_save",), "store"),
    PackageWait("orbax-checkpoint", "0.12.8", "orbax/checkpoint/_src/futures/future.py", ("wait_for_signals",), "store"),
    PackageWait("orbax-checkpoint", "0.12.8", "orbax/checkpoint/_src/futures/signaling_client.py", ("blocking_key_value_get", "wait_at_barrier"), "store"),
    PackageWait("orbax-checkpoint", "0.12.8", "orbax/checkpoint/_src/multihost/multihost.py", ("initialize_distributed_to_device_ids", "initialize_runtime_to_distributed_ids", "_fn"), "store"),
    PackageWait("ray", "2.60.0", "ray/train/v2/_internal/execution/worker_group/worker_group.py", ("_start_impl",), "future"),
    PackageWait("torchtitan", "0.3.0", "torchtitan/distributed/flex_shard/_optimizer_reshard_schedule.py", ("_validate_bucket_plans_across_ranks",), "device"),
    PackageWait("transformers", "5.24.0", "transformers/distributed/pipeline_parallel.py", ("communicate",), "transfer"),
    PackageWait("transformers", "5.24.0", "transformers/distributed/sharding_utils.py", ("_tied_params_are_equal",), "device"),
    PackageWait("transformers", "5.24.0", "transformers/generation/utils.py", ("_has_unfinished_sequences",), "device"),
    PackageWait("verl", "0.9.1", "verl/checkpoint_engine/delta_sync/sparse_gather.py", ("gather_slot_entries_to_rank0",), "device"),
    PackageWait("verl", "0.9.1", "verl/models/mcore/util.py", ("postprocess_packed_seqs", "postprocess_thd_engine"), "device"),
    PackageWait("verl", "0.9.1", "verl/single_controller/base/worker.py", ("_configure_with_store",), "store"),
    PackageWait("verl", "0.9.1", "verl/trainer/sft_trainer.py", ("_get_batch_seqlens",), "device"),
    PackageWait("verl", "0.9.1", "verl/utils/megatron/router_replay_utils.py", ("pp_gather",), "device"),
    PackageWait("verl", "0.9.1", "verl/workers/engine/automodel/transformer_impl.py", ("forward_backward_batch",), "device"),
    PackageWait("verl", "0.9.1", "verl/workers/engine/megatron/transformer_impl.py", ("forward_backward_batch",), "device"),
    PackageWait("verl", "0.9.1", "verl/workers/engine/torchtitan/transformer_impl.py", ("forward_backward_batch",), "device"),
    PackageWait("verl", "0.9.1", "verl/workers/engine/veomni/transformer_impl.py", ("forward_backward_batch",), "device"),
    PackageWait("verl", "0.9.1", "verl/workers/engine_workers.py", ("_postprocess_output", "train_mini_batch"), "device"),
    PackageWait("verl", "0.9.1", "verl/workers/rollout/sglang_rollout/sglang_rollout.py", ("_update_weights_delta_flush",), "device"),
    PackageWait("vllm", "0.33.0", "vllm/config/parallel.py", ("_pick_stateless_dp_port",), "store"),
    PackageWait("vllm", "0.33.0", "vllm/config/parallel.py", ("has_unfinished_dp", "sync_kv_cache_memory_size"), "device"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/device_communicators/cpu_communicator.py", ("_init_cpu_shm",), "device"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/device_communicators/custom_all_reduce.py", ("_all_ranks_true",), "device"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/device_communicators/shm_broadcast.py", ("create_from_process_group",), "collective"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/eplb/async_worker.py", ("transfer_run_periodically",), "device"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/eplb/eplb_communicator.py", ("execute", "_post_read_barrier"), "handle"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/eplb/rebalance_execute.py", ("rearrange_expert_weights_inplace",), "device"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/parallel_state.py", ("init_distributed_environment",), "store"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/parallel_state.py", ("in_the_same_node_as",), "collective"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/parallel_state.py", ("recv_object",), "device"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/parallel_state.py", ("send_tensor_dict", "_reap_completed_isends", "recv_tensor_dict"), "transfer"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/stateless_coordinator.py", ("_fetch_group_ports",), "store"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/utils.py", ("cpu_all_reduce_",), "transfer"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/utils.py", ("recv_obj", "recv"), "store"),
    PackageWait("vllm", "0.33.0", "vllm/distributed/weight_transfer/m2n_common.py", ("publish_destination_placements",), "device"),
    PackageWait("vllm", "0.33.0", "vllm/v1/attention/ops/dcp.py", ("dcp_a2a_lse_reduce",), "handle"),
    PackageWait("vllm", "0.33.0", "vllm/v1/executor/uniproc_executor.py", ("determine_available_memory",), "device"),
    PackageWait("vllm", "0.33.0", "vllm/v1/worker/gpu_model_runner.py", ("_prepare_input_ids",), "transfer"),
    PackageWait("vllm", "0.33.0", "vllm/v1/worker/gpu_worker.py", ("wait_for_comm", "execute_model"), "handle"),
    PackageWait("megatron-core", "0.16.1", "megatron/core/energy_monitor.py", ("lap", "get_total"), "device"),
    PackageWait("nemo-toolkit", "3.0.0", "nemo/utils/callbacks/preemption.py", ("interrupted",), "device"),
    # PyTorch's own functions that wait in their own line
    PackageWait("torch", _PT, "torch/distributed/distributed_c10d.py", ("_coalescing_manager", "wait"), "handle"),
    PackageWait("torch", _PT, "torch/distributed/collective_utils.py", ("_check_philox_rng_sync", "_check_cpu_rng_sync"), "device"),
    PackageWait("torch", _PT, f"{FSDP}/_exec_order_utils.py", ("_check_order",), "device"),
    PackageWait("torch", _PT, f"{FSDP}/_fully_shard/_fsdp_param_group.py", ("_reset_iter_state",), "handle"),
    PackageWait("torch", _PT, f"{FSDP}/_fully_shard/_fully_shard.py", ("unshard",), "handle", "all_gather"),
    PackageWait("torch", _PT, f"{FSDP}/_optim_utils.py", ("_check_missing_keys_on_rank",), "device"),
    PackageWait("torch", _PT, f"{FSDP}/fully_sharded_data_parallel.py", ("_unshard",), "handle", "all_gather"),
    PackageWait("torch", _PT, f"{FSDP}/sharded_grad_scaler.py", ("unscale_",), "handle"),
    PackageWait("torch", _PT, "torch/distributed/algorithms/ddp_comm_hooks/quantization_hooks.py", ("quantize_and_allgather", "dequantize_and_aggregate"), "handle"),
    PackageWait("torch", _PT, "torch/distributed/optim/optimizer.py", ("_wait_for_all",), "handle"),
    PackageWait("torch", _PT, "torch/distributed/rpc/api.py", ("rpc_sync", "_rref_typeof_on_user"), "handle", "an RPC"),
    PackageWait("torch", _PT, "torch/distributed/rpc/backend_registry.py", ("_tensorpipe_init_backend_handler",), "init"),
    PackageWait("torch", _PT, "torch/distributed/tensor/_tp_conv.py", ("_ring_send_recv_construct", "_ring_send_recv_aggregate"), "transfer"),
    PackageWait("torch", _PT, "torch/nn/parallel/distributed.py", ("_check_global_requires_backward_grad_sync", "_match_all_reduce_for_bwd_pass", "_match_unused_params_allreduce"), "handle", "all_reduce"),
    PackageWait("torch", _PT, "torch/nn/parallel/distributed.py", ("_find_common_rank",), "device"),
    # Accelerators beside NVIDIA's, sequence and expert parallelism
    PackageWait("torch-npu", "2.14.0", "torch_npu/npu/utils.py", ("synchronize",), "device"),
    PackageWait("torch-npu", "2.14.0", "torch_npu/npu/streams.py", ("synchronize",), "device"),
    PackageWait("torch-xla", "2.9.0", "torch_xla/core/xla_model.py", ("rendezvous",), "collective", top=False),
    PackageWait("torch-xla", "2.9.0", "torch_xla/core/xla_model.py", ("wait_device_ops",), "device"),
    PackageWait("ring-flash-attn", "0.1.8", "ring_flash_attn/utils.py", ("wait",), "transfer", "recv or send"),
    PackageWait("yunchang", "0.6.4", "yunchang/ring/utils.py", ("wait",), "transfer", "recv or send"),
    PackageWait("deep-ep", "567632dd5981", "deep_ep/buffer.py", ("dispatch", "combine", "internode_dispatch", "internode_combine"), "collective"),
    PackageWait("deep-ep", "dd758caf4518", "deep_ep/buffers/legacy.py", ("dispatch", "combine", "internode_dispatch", "internode_combine"), "collective"),
    PackageWait("torchrec", "376cac6ad13c", "torchrec/distributed/dist_data.py", ("_wait_impl",), "handle", "all_to_all"),
    PackageWait("torchrec", "376cac6ad13c", "torchrec/distributed/comm_ops.py", ("forward", "backward"), "handle", "a collective of embeddings"),
    PackageWait("xgboost", "2.1", "xgboost/collective.py", ("broadcast", "allreduce"), "collective"),
    PackageWait("deepspeed", "0.17.6", "deepspeed/runtime/sequence_parallel/ulysses_sp.py", ("sp_fwd_loss_bwd",), "device", gone=True),
    PackageWait("deepspeed", "0.17.6", "deepspeed/sequence/layer.py", ("pre_hook_fun",), "handle", gone=True),
    PackageWait("megatron-core", "0.14.0", "megatron/core/rerun_state_machine.py", ("should_run_forward_backward",), "device", gone=True),
    PackageWait("nemo-toolkit", "2.5.0", "nemo/lightning/pytorch/callbacks/preemption.py", ("interrupted",), "device", gone=True),
    PackageWait("nemo-toolkit", "2.5.0", "nemo/lightning/_strategy_lib.py", ("_maybe_opt_step",), "device", gone=True),
    PackageWait("nemo-toolkit", "2.5.0", "nemo/collections/nlp/parts/nlp_overrides.py", ("_maybe_opt_step",), "device", gone=True),
    PackageWait("nemo-toolkit", "2.5.0", "nemo/collections/nlp/modules/common/megatron/clip_grads.py", ("count_zeros_fp32",), "device", gone=True),
    PackageWait("nemo-toolkit", "2.5.0", "nemo/collections/nlp/modules/common/text_generation_utils.py", ("receive_generate_info",), "device", gone=True),
    PackageWait("nemo-toolkit", "2.5.0", "nemo/collections/llm/gpt/model/hf_auto_model_for_causal_lm.py", ("reduce_item",), "device", gone=True),
    PackageWait("nemo-toolkit", "2.5.0", "nemo/collections/asr/modules/squeezeformer_encoder.py", ("update_max_seq_length",), "device", gone=True),
    PackageWait("verl", "0.6.1", "verl/trainer/fsdp_sft_trainer.py", ("training_step",), "device", gone=True),
    PackageWait("jax", "0.6.2", "jax/_src/prng.py", ("block_until_ready",), "device", gone=True),
    # Last, for whoever calls it says more: a wait for an answer of any actor
    PackageWait("ray", "2.60.0", "ray/_private/worker.py", ("get_objects", "get", "wait"), "future", top=False),
)  # fmt: skip


def _row(wait: PackageWait) -> FrameSign:
    name, role, phrase = KINDS[wait.kind]
    file = LatePattern(rf"(?:.*/)?{re.escape(wait.file)}")
    functions = LatePattern("|".join(map(re.escape, wait.functions)))
    return FrameSign(name, role, phrase, file, functions, wait.operation, wait.top)


_ANY = "|".join(sorted(map(re.escape, FRAMEWORKS), key=len, reverse=True))
_COLLECTIVE = (
    r"_?(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast)(?:_(?!parameters|optimizer)\w+)?|"
    r"(?:monitored_)?barrier|wait_for_everyone"
)

PACKAGE_CALLS: tuple[FrameSign, ...] = (
    *map(_row, PACKAGE_WAITS),
    # A wrapper of any framework that is named as the collective, where its own line blocks.
    FrameSign(*KINDS["collective"], LatePattern(rf"(?:.*/)?(?:{_ANY}|torch/distributed)/.*\.py"), LatePattern(_COLLECTIVE), "", True),
)  # fmt: skip
"""The rows in the order in which they are tried, after those of PyTorch's own calls."""
