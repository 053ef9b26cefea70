"""Configuration: one YAML file, decoded into a frozen RunConfig that every stage reads and none writes."""

from orl_core.config.agent import AgentConfig
from orl_core.config.load import decode_config, load_config
from orl_core.config.rollout import RolloutConfig
from orl_core.config.schema import (
    EnvironmentConfig,
    EvalConfig,
    GroupRewardConfig,
    Reduction,
    RewardMode,
    RunConfig,
    Secret,
    Secrets,
)
from orl_core.config.trainer import TrainerConfig

__all__ = [
    "AgentConfig",
    "EnvironmentConfig",
    "EvalConfig",
    "GroupRewardConfig",
    "Reduction",
    "RewardMode",
    "RolloutConfig",
    "RunConfig",
    "Secret",
    "Secrets",
    "TrainerConfig",
    "decode_config",
    "load_config",
]
