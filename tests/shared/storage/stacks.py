"""Folders of checkpoints as the sources of each framework name their files, with what is told when one is lost, and what is not there yet while it is saved."""

from typing import NamedTuple

RANKS = range(2)


class Stack(NamedTuple):
    """What one framework writes. `*` in a file's name: shards of PyTorch with their index; STEP: the step."""

    folder: str
    files: tuple[str, ...]
    lost: tuple[str, ...]  # each is told when it alone is lost
    saving: tuple[str, ...] = ()  # what is not there yet while it is saved
    trackers: dict[str, str] = {}  # beside the checkpoints: what each says of the step
    temporary: str = ""  # the folder's name while it is saved
    cut: str = ""  # a file that ends too early while it is saved


TRAINER = ("rng_state_0.pth", "rng_state_1.pth", "scheduler.pt", "trainer_state.json", "training_args.bin")  # fmt: skip
ZERO = tuple(f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in RANKS) + tuple(f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in RANKS)  # fmt: skip
ORBAX = ("_METADATA", "_sharding", "manifest.ocdbt", "d/0cfc70b3", "ocdbt.process_0/d/107f870f", "ocdbt.process_0/manifest.ocdbt", "array_metadatas/process_0")  # fmt: skip
NANOTRON_WEIGHT = "model/model/decoder/0/pp_block/attn/qkv_proj/model_weight_pp-rank-0-of-1_tp-rank-{}-of-2.safetensors"  # fmt: skip
STACKS: dict[str, Stack] = {
    "Megatron-Bridge, without common.pt": Stack(
        "iter_000STEP", ("*", "metadata.json", "run_config.yaml", "train_state.pt"),
        ("__1_0.distcp", ".metadata", "train_state.pt"), (".metadata", "metadata.json", "train_state.pt"),
    ),
    "Megatron-LM, tracked": Stack(
        "iter_000STEP", ("*", "metadata.json", "common.pt"), ("__1_0.distcp", "common.pt"), (),
        {"latest_checkpointed_iteration.txt": "STEP"},
    ),
    "diffusers": Stack(
        "checkpoint-STEP", ("unet/diffusion_pytorch_model.safetensors", "unet/config.json", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"),
        ("optimizer.bin", "unet/diffusion_pytorch_model.safetensors", "random_states_0.pkl"), ("scheduler.bin", "random_states_0.pkl"),
    ),
    "LeRobot": Stack(
        "checkpoints/00STEP",
        ("pretrained_model/model.safetensors", "pretrained_model/train_config.json", "training_state/training_step.json",
         "training_state/rng_state.safetensors", "training_state/optimizer_state.safetensors", "training_state/scheduler_state.json"),
        ("pretrained_model/model.safetensors", "training_state/training_step.json", "training_state/optimizer_state.safetensors"),
        ("training_state/optimizer_state.safetensors", "training_state/scheduler_state.json"),
    ),
    "NeMo 2": Stack(
        "model--val_loss=1.23-step=STEP-consumed_samples=64.0", ("weights/*", "weights/common.pt", "weights/metadata.json", "context/io.json"),
        ("weights/__1_0.distcp", "weights/.metadata", "weights/common.pt"), ("weights/.metadata", "weights/metadata.json"),
    ),
    "verl": Stack(
        "global_step_STEP", (*tuple(f"actor/{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim", "extra_state") for rank in RANKS), "data.pt"),
        ("actor/optim_world_size_2_rank_1.pt", "data.pt"), ("data.pt",), {"latest_checkpointed_iteration.txt": "STEP"},
    ),
    "nanotron": Stack(
        "checkpoints/STEP", tuple(NANOTRON_WEIGHT.format(rank) for rank in RANKS) + tuple(f"optimizer/optimizer_pp-0-of-1_dp-0-of-1_tp-{rank}-of-2_exp-0-of-1.pt" for rank in RANKS) + ("checkpoint_metadata.json",),
        (NANOTRON_WEIGHT.format(1), "optimizer/optimizer_pp-0-of-1_dp-0-of-1_tp-0-of-2_exp-0-of-1.pt", "checkpoint_metadata.json"), ("checkpoint_metadata.json",),
        {"checkpoints/latest.txt": "STEP"},
    ),
    "Lightning with DeepSpeed": Stack(
        "epoch=0-step=STEP.ckpt", ("checkpoint/mp_rank_00_model_states.pt", *(f"checkpoint/{one}" for one in ZERO[2:]), "latest", "zero_to_fp32.py"),
        ("checkpoint/mp_rank_00_model_states.pt", f"checkpoint/{ZERO[3]}"), ("latest",),
    ),
    "torchtitan": Stack("checkpoint/step-STEP", ("*",), ("__1_0.distcp", ".metadata"), (".metadata",)),
    "Trainer with FSDP": Stack(
        "checkpoint-STEP", ("pytorch_model_fsdp_0/*", "optimizer_0/*", *TRAINER),
        ("optimizer_0/__1_0.distcp", "pytorch_model_fsdp_0/.metadata", "scheduler.pt"), ("optimizer_0/.metadata", *TRAINER),
    ),
    "accelerate with FSDP": Stack(
        "checkpoints/checkpoint_STEP", ("pytorch_model_fsdp_0/*", "optimizer_0/*", "random_states_0.pkl", "random_states_1.pkl", "scheduler.bin"),
        ("optimizer_0/__1_0.distcp", "random_states_1.pkl", "scheduler.bin"), ("optimizer_0/.metadata", "scheduler.bin"),
    ),
    "Composer, sharded": Stack("ep0-baSTEP", ("*",), ("__1_0.distcp", ".metadata"), (".metadata",)),
    "Trainer with DeepSpeed": Stack(
        "checkpoint-STEP", (*(f"global_stepSTEP/{one}" for one in ZERO), "latest", "model.safetensors", "config.json", *TRAINER),
        (f"global_stepSTEP/{ZERO[3]}", "model.safetensors", "trainer_state.json", "latest"), ("latest", *TRAINER),
    ),
    "OLMo": Stack(
        "stepSTEP", (*tuple(f"{kind}/rank{rank}.pt" for kind in ("model", "optim", "train") for rank in RANKS), "config.yaml"),
        ("optim/rank1.pt", "train/rank0.pt"), ("train/rank0.pt", "train/rank1.pt"),
    ),
    "OLMo-core": Stack(
        "stepSTEP", ("model_and_optim/*", "train/rank0.pt", "train/rank1.pt", "config.json", ".metadata.json"),
        ("model_and_optim/__1_0.distcp", "model_and_optim/.metadata", "train/rank1.pt", ".metadata.json"), (".metadata.json",),
    ),
    "Orbax as MaxText has it": Stack(
        "checkpoints/STEP", ("_CHECKPOINT_METADATA", *(f"items/{one}" for one in ORBAX), "iter/process_0-of-1.json"),
        ("items/manifest.ocdbt", "items/_METADATA"), ("items/manifest.ocdbt",),
    ),
    "Orbax as openpi has it": Stack(
        "exp/STEP", ("_CHECKPOINT_METADATA", *(f"{item}/{one}" for item in ("params", "train_state") for one in ORBAX), "assets/norm_stats.json"),
        ("train_state/manifest.ocdbt", "params/_METADATA"), ("train_state/manifest.ocdbt",),
    ),
    "Orbax as Flax has it": Stack("checkpoint_STEP", ORBAX, ("manifest.ocdbt", "_METADATA"), ("manifest.ocdbt", "_METADATA")),
    "Levanter": Stack(
        "run-1/step-STEP", (*(f"{array}/{file}" for array in ("model/transformer/layers/mlp/up/weight", "opt_state/inner/mu/model/embeddings/weight") for file in (".zarray", "0.0", "0.1")), "training_key/.zarray", "training_key/0", "metadata.json"),
        ("metadata.json", "model/transformer/layers/mlp/up/weight/.zarray"), ("metadata.json", "opt_state/inner/mu/model/embeddings/weight/0.1"),
    ),
    "Levanter, in one database": Stack(
        "run-1/step-STEP", ("manifest.ocdbt", "d/ac602c1933845be91ae74ac598c2674c", "d/4aead63b970450643d027b3e7377e242", "metadata.json"),
        ("metadata.json", "manifest.ocdbt"), ("metadata.json", "d/4aead63b970450643d027b3e7377e242"),
    ),
    "adapters of PEFT and unsloth": Stack(
        "checkpoint-STEP", ("adapter_config.json", "adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin"),
        ("adapter_model.safetensors", "optimizer.pt", "trainer_state.json"), ("rng_state.pth", "trainer_state.json"),
    ),
}  # fmt: skip
