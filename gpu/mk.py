"""Write random weights into FOLDER, which has a config.json: python mk.py FOLDER."""
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.from_pretrained(sys.argv[1])
torch.manual_seed(0)
with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model.cpu().save_pretrained(sys.argv[1])
print(sum(p.numel() for p in model.parameters()) / 1e9, "B")
