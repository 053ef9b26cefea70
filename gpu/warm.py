"""Print the folder of SmolLM2 as published (`convert`), or of its warm start for a seed (`warm SEED`), made if missing."""
import sys
from orl_core.config.load import load_config
from orl_launcher import playground as p
if sys.argv[1] == "convert":
    print(p.converted(p.cache_folder()))
else:
    print(p.made_model(load_config("configs/smollm2.yaml", [f"trainer.seed={sys.argv[2]}"]))[0])
