"""The arms that are compared: by name a trainer's class and the keys that define it."""

GRPOTrainer, ProRLTrainer = "trl:GRPOTrainer", "trl_prorl:ProRLTrainer"  # which take seconds to import
BASELINE = "TRL β>0"
ACCELERATED = {"reuse_old_logps": True}
PACKED = {"reuse_old_logps": True, "pack_groups": "on", "compact_generation": "on"}
ARMS = {
    BASELINE: (GRPOTrainer, {"beta": 0.02}),
    "TRL β=0": (GRPOTrainer, {"beta": 0.0}),
    "A0": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, "ref_compute": "naive_epoch", **ACCELERATED}),
    "A": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, **ACCELERATED}),
    "B": (ProRLTrainer, {"beta_old": 0.02, **ACCELERATED}),
    "C": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, "optimizer_reset": "hard", **ACCELERATED}),
    "plain packed": (ProRLTrainer, {"beta": 0.0, **PACKED}),
    "A packed": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, **PACKED}),
    "B packed": (ProRLTrainer, {"beta_old": 0.02, **PACKED}),
    "C packed": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, "optimizer_reset": "hard", **PACKED}),
}
FP32_ARMS = {  # frozen weights in fp32 where those of the run are in bf16; both compute in bf16
    f"{name}, fp32": (GRPOTrainer, ARMS[name][1] | {"dtype": "float32"}) for name in (BASELINE, "TRL β=0")
}
OVERHEAD_ARMS = {BASELINE: ARMS[BASELINE], "ours, all off": (ProRLTrainer, {"beta": 0.02})}
FLOOR = "floor"  # no trainer: what the products and the weights' way through memory cost
GROWTH_ARMS = (BASELINE, "A packed", "B packed")
