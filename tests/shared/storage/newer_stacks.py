"""Folders of checkpoints as the newest sources of more frameworks name their files."""

from shared.storage.stacks import RANKS, TRAINER, ZERO, Stack

SHARDED = (
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "config.json",
)


def each(*forms: str) -> tuple[str, ...]:
    """Each of the names for each rank."""
    return tuple(form.format(rank) for form in forms for rank in RANKS)


def of_fsdp(role: str) -> tuple[str, ...]:
    """What verl's FSDP workers write for a role (actor, critic)."""
    return each(
        *(f"{role}/{kind}_world_size_2_rank_{{}}.pt" for kind in ("model", "optim", "extra_state"))
    )


NEWER: dict[str, Stack] = {
    "fairseq2": Stack("checkpoints/step_STEP", (*each("model/pp_00/tp_00/sdp_0{}.pt", "optimizer/pp_00/tp_00/sdp_0{}.pt", "trainer/rank_0{}.pt", "data_reader/dp_0{}.pt"),),
        ("model/pp_00/tp_00/sdp_01.pt", "optimizer/pp_00/tp_00/sdp_00.pt", "trainer/rank_01.pt", "data_reader/dp_00.pt"), temporary="checkpoints/step_STEP.tmp"),
    "NeMo RL": Stack("results/grpo/step_STEP", ("policy/weights/*", "policy/optimizer/*", "train_dataloader.pt", "training_info.json", "config.yaml"),
        ("policy/weights/__1_0.distcp", "policy/optimizer/.metadata", "train_dataloader.pt"), temporary="results/grpo/tmp_step_STEP"),
    "NeMo RL on Megatron": Stack("results/grpo/step_STEP", ("policy/weights/iter_0000000/*", "policy/weights/iter_0000000/common.pt", "policy/weights/iter_0000000/metadata.json", "policy/weights/iter_0000000/train_state.pt", "policy/weights/latest_train_state.pt", "train_dataloader.pt", "training_info.json"),
        ("policy/weights/iter_0000000/__1_0.distcp", "policy/weights/iter_0000000/common.pt", "train_dataloader.pt"), temporary="results/grpo/tmp_step_STEP"),
    "NeMo Automodel": Stack("checkpoints/epoch_0_step_STEP", ("model/shard-00001-model-00001-of-00001.safetensors", "model/config.json", "optim/*", *each("dataloader/dataloader_dp_rank_{}.pt", "rng/rng_dp_rank_{}.pt"), "step_scheduler.pt", "config.yaml", "losses.json"),
        ("optim/__1_0.distcp", "optim/.metadata", "rng/rng_dp_rank_1.pt", "step_scheduler.pt"), ("optim/.metadata", "step_scheduler.pt")),
    "prime-rl": Stack("outputs/checkpoints/step_STEP", ("trainer/*", *each("dataloader/rank_{}.pt"), "orchestrator/progress.pt"), ("trainer/__1_0.distcp", "trainer/.metadata", "orchestrator/progress.pt", "dataloader/rank_1.pt"), ("trainer/.metadata",)),
    "SkyRL": Stack("ckpts/global_step_STEP", (*of_fsdp("policy"), *of_fsdp("critic"), "policy/fsdp_config.json", "trainer_state.pt", "data.pt"), ("policy/optim_world_size_2_rank_1.pt", "critic/model_world_size_2_rank_0.pt", "trainer_state.pt", "data.pt"), ("trainer_state.pt", "data.pt"), {"ckpts/latest_ckpt_global_step.txt": "STEP"}),
    "verl on Megatron": Stack("global_step_STEP", ("actor/dist_ckpt/*", "actor/dist_ckpt/common.pt", "actor/dist_ckpt/metadata.json", "actor/huggingface/config.json", "actor/transformer_config.json", "data.pt"), ("actor/dist_ckpt/__1_0.distcp", "actor/dist_ckpt/common.pt", "data.pt"), ("actor/dist_ckpt/.metadata", "data.pt"), {"latest_checkpointed_iteration.txt": "STEP"}),
    "verl with a critic": Stack("global_step_STEP", (*of_fsdp("actor"), *of_fsdp("critic"), "actor/fsdp_config.json", "actor/huggingface/config.json", "data.pt"), ("critic/optim_world_size_2_rank_0.pt", "actor/model_world_size_2_rank_1.pt"), ("data.pt",), {"latest_checkpointed_iteration.txt": "STEP"}),
    "OpenRLHF": Stack("ckpt/checkpoints_ppo/_actor/global_stepSTEP", ZERO, (ZERO[3], ZERO[0]), (), {"ckpt/checkpoints_ppo/_actor/latest": "global_stepSTEP"}),
    "slime": Stack("iter_000STEP", ("*", "common.pt", "metadata.json"), ("__1_0.distcp", "common.pt"), (), {"latest_checkpointed_iteration.txt": "STEP"}),
    "AReaL": Stack("checkpoints/root/exp/trial/default/epoch0epochstep10globalstepSTEP", SHARDED, ("model-00002-of-00002.safetensors",), ("model-00002-of-00002.safetensors",)),
    "XTuner v1": Stack("work/20261128/checkpoints/ckpt-step-STEP", ("model/*", "optimizer/*", "dataloader", "lr_scheduler", "train_state.json"), ("model/__1_0.distcp", "optimizer/__1_0.distcp", "optimizer/.metadata", "train_state.json"), ("optimizer/.metadata", "train_state.json")),
    "XTuner with DeepSpeed": Stack("work/iter_STEP.pth", (*ZERO, "zero_to_fp32.py"), (ZERO[3], ZERO[0]), (), {"work/last_checkpoint": "/out/work/iter_STEP.pth"}),
    "VeOmni 0.1": Stack("checkpoints/global_step_STEP", ("model/*", "optimizer/*", *each("extra_state/extra_state_rank_{}.pt")), ("model/__1_0.distcp", "optimizer/.metadata", "extra_state/extra_state_rank_1.pt"), ("optimizer/.metadata",)),
    "VeOmni": Stack("checkpoints/global_step_STEP", ("model/*", "optimizer/*", *each("extra_state/rank_{}.pt", "loader/rank_{}.pt")), ("model/.metadata", "optimizer/__1_0.distcp", "loader/rank_1.pt"), ("model/.metadata",)),
    "BAGEL": Stack("results/checkpoints/000STEP", ("model.safetensors", "ema.safetensors", "optimizer.00000-of-00002.pt", "optimizer.00001-of-00002.pt", "scheduler.pt", "data_status.pt"), ("model.safetensors", "optimizer.00001-of-00002.pt", "optimizer.00000-of-00002.pt", "scheduler.pt", "data_status.pt"), ("optimizer.00001-of-00002.pt", "scheduler.pt", "data_status.pt")),
    "openpi on PyTorch": Stack("checkpoints/pi0/exp/STEP", ("model.safetensors", "optimizer.pt", "metadata.pt", "assets/norm_stats.json"), ("model.safetensors", "optimizer.pt", "metadata.pt"), temporary="checkpoints/pi0/exp/tmp_STEP"),
    "Cosmos-Predict2": Stack("checkpoints/iter_00000STEP", ("model/*", "optim/*", "scheduler/*", "trainer/*"), ("model/__1_0.distcp", "optim/.metadata", "trainer/__1_0.distcp"), (), {"checkpoints/latest_checkpoint.txt": "iter_00000STEP"}),
    "finetrainers": Stack("out/finetrainers_step_STEP", ("*",), ("__1_0.distcp", ".metadata"), (".metadata",)),
    "diffusers, LoRA": Stack("checkpoint-STEP", ("pytorch_lora_weights.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"), ("pytorch_lora_weights.safetensors", "optimizer.bin", "random_states_0.pkl"), ("scheduler.bin", "random_states_0.pkl")),
    "diffusers with EMA": Stack("checkpoint-STEP", ("unet/diffusion_pytorch_model.safetensors", "unet/config.json", "unet_ema/diffusion_pytorch_model.safetensors", "unet_ema/config.json", "optimizer.bin", "scheduler.bin", *each("random_states_{}.pkl")), ("unet_ema/diffusion_pytorch_model.safetensors", "optimizer.bin", "random_states_1.pkl"), ("scheduler.bin", *each("random_states_{}.pkl"))),
    "diffusers with DeepSpeed": Stack("checkpoint-STEP", ("transformer/diffusion_pytorch_model.safetensors", "transformer/config.json", *(f"pytorch_model/{one}" for one in ZERO), "latest", "zero_to_fp32.py", "scheduler.bin", *each("random_states_{}.pkl")), (f"pytorch_model/{ZERO[3]}", "random_states_1.pkl"), ("latest", *each("random_states_{}.pkl"))),
    "kohya": Stack("out/name-step0000STEP-state", ("model.safetensors", "optimizer.bin", "scheduler.bin", "sampler.bin", "random_states_0.pkl", "train_state.json"), ("model.safetensors", "optimizer.bin", "random_states_0.pkl", "train_state.json"), ("scheduler.bin", "random_states_0.pkl", "train_state.json")),
    "accelerate": Stack("out/checkpoints/checkpoint_STEP", ("model.safetensors", "optimizer.bin", "scheduler.bin", "sampler.bin", *each("random_states_{}.pkl"), "custom_checkpoint_0.pkl"), ("model.safetensors", "optimizer.bin", "random_states_1.pkl", "custom_checkpoint_0.pkl"), ("scheduler.bin", *each("random_states_{}.pkl"), "custom_checkpoint_0.pkl")),
    "accelerate, by steps": Stack("out/step_STEP", ("model.safetensors", "optimizer.bin", "scheduler.bin", *each("random_states_{}.pkl")), ("model.safetensors", "optimizer.bin", "random_states_1.pkl"), ("scheduler.bin", *each("random_states_{}.pkl"))),
    "accelerate with DeepSpeed": Stack("out/step_STEP", (*(f"pytorch_model/{one}" for one in ZERO), "latest", "zero_to_fp32.py", *each("random_states_{}.pkl")), (f"pytorch_model/{ZERO[3]}", f"pytorch_model/{ZERO[0]}", "random_states_1.pkl"), ("latest", *each("random_states_{}.pkl"))),
    "Colossal-LLaMA": Stack("out/epoch-0_step-STEP", ("modeling/pytorch_model-00001.bin", "modeling/pytorch_model-00002.bin", "modeling/pytorch_model.bin.index.json", "modeling/config.json", "optimizer/pytorch_optim-00001.bin", "optimizer/pytorch_optim.bin.index.json", "optimizer/pytorch_optim_group.bin", "lr_scheduler", "running_states.json"),
        ("modeling/pytorch_model-00002.bin", "optimizer/pytorch_optim-00001.bin", "running_states.json"), ("optimizer/pytorch_optim.bin.index.json", "optimizer/pytorch_optim_group.bin", "lr_scheduler", "running_states.json")),
    "Open-Sora": Stack("outputs/000-STDiT3/epoch0-global_stepSTEP", ("model/pytorch_model-00001.bin", "model/pytorch_model.bin.index.json", "optimizer/pytorch_optim-00001.bin", "optimizer/pytorch_optim.bin.index.json", "optimizer/pytorch_optim_group.bin", "lr_scheduler", "running_states.json", "ema.pt"),
        ("model/pytorch_model-00001.bin", "optimizer/pytorch_optim-00001.bin", "running_states.json"), ("running_states.json", "ema.pt")),
    "Megatron, legacy": Stack("iter_000STEP", each("mp_rank_0{}/model_optim_rng.pt", "mp_rank_0{}/distrib_optim.pt"), ("mp_rank_01/model_optim_rng.pt", "mp_rank_00/distrib_optim.pt"), (), {"latest_checkpointed_iteration.txt": "STEP"}),
    "Megatron, legacy with pipeline": Stack("iter_000STEP", each("mp_rank_00_00{}/model_optim_rng.pt"), ("mp_rank_00_001/model_optim_rng.pt",), (), {"latest_checkpointed_iteration.txt": "STEP"}),
    "Megatron, FSDP": Stack("iter_000STEP", ("*", "train_state.pt", "run_config.yaml"), ("__1_0.distcp", ".metadata"), (".metadata",), {"latest_checkpointed_iteration.txt": "STEP"}),
    "Megatron-DeepSpeed": Stack("global_stepSTEP", ("layer_01-model_00-model_states.pt", "layer_03-model_00-model_states.pt", "mp_rank_00_model_states.pt", *each("bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt")), ("layer_03-model_00-model_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"), (), {"latest": "global_stepSTEP", "latest_checkpointed_iteration.txt": "STEP"}),
    "GPT-NeoX": Stack("global_stepSTEP", ("layer_00-model_00-model_states.pt", "layer_02-model_00-model_states.pt", "mp_rank_00_model_states.pt", *each("zero_pp_rank_{}_mp_rank_00_optim_states.pt"), "configs/20B.yml"), ("layer_02-model_00-model_states.pt",), (), {"latest": "global_stepSTEP"}),
    "litgpt": Stack("out/pretrain/step-0000STEP", ("lit_model.pth", "model_config.yaml", "hyperparameters.yaml", "tokenizer.json"), (), cut="lit_model.pth"),
    "Lightning with FSDP": Stack("checkpoints/epoch=0-step=STEP.ckpt", ("*", "meta.pt"), ("__1_0.distcp", ".metadata", "meta.pt"), ("meta.pt",)),
    "LeRobot, newest": Stack("checkpoints/00STEP", ("pretrained_model/model.safetensors", "pretrained_model/config.json", "pretrained_model/train_config.json", "pretrained_model/policy_preprocessor.json", "pretrained_model/policy_preprocessor_step_3_normalizer_processor.safetensors", "pretrained_model/policy_postprocessor.json", "training_state/optimizer_param_groups.json", "training_state/optimizer_state.safetensors", "training_state/rng_state.safetensors", "training_state/scheduler_state.json", "training_state/training_step.json"),
        ("training_state/rng_state.safetensors", "training_state/optimizer_state.safetensors", "training_state/scheduler_state.json"), ("training_state/optimizer_state.safetensors", "training_state/scheduler_state.json", "training_state/optimizer_param_groups.json", "training_state/rng_state.safetensors")),
    "nanotron, newest": Stack("checkpoints/STEP", (*each("model/model/decoder/0/pp_block/attn/qkv_proj/model_weight_pp-rank-0-of-1_tp-rank-{}-of-2.safetensors", "optimizer/optimizer_pp-0-of-1_dp-0-of-1_tp-{}-of-2_exp-0-of-1.pt", "random/tp-{}-of-2_dp-0-of-1_pp-0-of-1.pt", "lr_scheduler/lr_scheduler_pp-0-of-1_dp-0-of-1_tp-{}-of-2_exp-0-of-1.pt"), "config.yaml", "model_config.json", "checkpoint_metadata.json"),
        ("random/tp-1-of-2_dp-0-of-1_pp-0-of-1.pt", "lr_scheduler/lr_scheduler_pp-0-of-1_dp-0-of-1_tp-1-of-2_exp-0-of-1.pt", "optimizer/optimizer_pp-0-of-1_dp-0-of-1_tp-0-of-2_exp-0-of-1.pt"), ("checkpoint_metadata.json",), {"checkpoints/latest.txt": "STEP"}),
    "lingua": Stack("dump/checkpoints/000000STEP", ("*", "params.json", *each("train_state_0000{}.json")), ("__1_0.distcp", ".metadata", "train_state_00001.json"), (".metadata", *each("train_state_0000{}.json"))),
    "SpeechBrain": Stack("save/CKPT+2026-11-28+00-STEP+00", ("CKPT.yaml", "model.ckpt", "optimizer.ckpt", "counter.ckpt", "lr_annealing.ckpt", "dataloader-TRAIN.ckpt"), ("model.ckpt", "optimizer.ckpt"), ("optimizer.ckpt", "counter.ckpt", "lr_annealing.ckpt", "dataloader-TRAIN.ckpt")),
    "OLMo, unsharded": Stack("stepSTEP-unsharded", ("model.pt", "optim.pt", "train.pt", "config.yaml"), ("model.pt", "optim.pt", "train.pt"), ("optim.pt", "train.pt")),
    "PEFT with DeepSpeed": Stack("checkpoint-STEP", (*(f"global_stepSTEP/{one}" for one in ZERO), "latest", "adapter_config.json", "adapter_model.safetensors", *TRAINER), (f"global_stepSTEP/{ZERO[3]}", "adapter_model.safetensors", "trainer_state.json"), ("latest", *TRAINER)),
    "torchtune": Stack("out/epoch_STEP", SHARDED, ("model-00002-of-00002.safetensors",), ("model-00002-of-00002.safetensors",)),
    "DINOv3": Stack("out/ckpt/STEP", ("*",), ("__1_0.distcp", ".metadata"), (".metadata",)),
    "torchtitan in the form of Hugging Face": Stack("checkpoint/step-STEP", SHARDED[: 3], ("model-00001-of-00002.safetensors",), ("model-00002-of-00002.safetensors", "model.safetensors.index.json")),
    "ms-swift": Stack("output/v0-20261128/checkpoint-STEP", ("args.json", *SHARDED, "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "trainer_state.json", "training_args.bin"), ("optimizer.pt", "model-00001-of-00002.safetensors", "rng_state_1.pth"), ("trainer_state.json",)),
    "ROLL": Stack("out/checkpoint-STEP/actor_train", ("*",), ("__1_0.distcp",), (".metadata",)),
}  # fmt: skip
