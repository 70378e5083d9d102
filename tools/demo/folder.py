"""Making the demo folder, and adding what an existing one lacks."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tools.demo import settings
from tools.demo.capture import cached_probe
from tools.demo.errors import DemoError
from tools.demo.files import new_folder, write_file, write_json
from tools.demo.gate import Status, add_gate
from tools.demo.markers import directions, marker_id, write_marker
from tools.demo.model import WEIGHTS, place_model
from tools.demo.words import choose_words
from tools.gate.trainer import Advance

if TYPE_CHECKING:
    from torch import Tensor

TRAINED = Path(__file__).with_name("adapters")
"""The committed adapters that `python -m tools train-demo` made."""

PARTS = (f"model/{WEIGHTS}", "adapters", "markers.json", "policy.yaml", "serving.yaml", "keys.json")


def is_demo(folder: Path) -> bool:
    """Tell whether ``folder`` is a whole demo folder of ours."""
    return all((folder / part).exists() for part in PARTS)


def build(out: Path, model: Path, markers: int, status: Status, advance: Advance) -> None:
    """Make ``out`` afresh, with fresh keys, out of a converted model; it appears whole."""
    with new_folder(out) as building:
        status("placing the base model")
        place_model(model, building / "model")
        (building / "adapters").mkdir()
        add_trained(building)
        write_json(building / "markers.json", {})
        add_markers(building, model, markers, status, advance)
        add_gate(building, model, status, advance)
        keys = settings.new_keys()
        write_file(building / "policy.yaml", settings.policy_text(keys))
        write_file(building / "serving.yaml", settings.SERVING)
        write_json(building / "keys.json", keys, mode=0o600)


def add_trained(out: Path) -> list[str]:
    """Copy committed adapters that ``out`` lacks or has in another version; return their names."""
    added = []
    for source in sorted(TRAINED.glob("*/adapter_model.safetensors")):
        lora_id, target = source.parent.name, out / "adapters" / source.parent.name
        if target.is_dir() and same_files(source.parent, target):
            continue
        # Built beside adapters/, never in it: a watching server must not see half an adapter.
        with new_folder(target, scratch=out) as building:
            for name in ("adapter_config.json", "adapter_model.safetensors"):
                shutil.copyfile(source.with_name(name), building / name)
        added.append(lora_id)
    return added


def same_files(one: Path, other: Path) -> bool:
    """Tell whether the adapter files of two folders have the same bytes."""
    names = ("adapter_config.json", "adapter_model.safetensors")
    return all(
        (other / name).is_file() and (one / name).read_bytes() == (other / name).read_bytes()
        for name in names
    )


def add_markers(out: Path, model: Path, count: int, status: Status, advance: Advance) -> list[str]:
    """Make markers 1 to ``count`` where ``out`` lacks them; return the lora_ids made."""
    missing = missing_markers(out, count)
    if not missing:
        return []
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    chosen = choose_words(count, encode)
    words = {marker_id(number): word for number, word in enumerate(chosen, start=1)}
    probe = cached_probe(model, status)
    status("making marker adapters")
    tokens = [encode(" " + words[lora_id])[0] for lora_id in missing]
    heads = directions(output_head(model), tokens)
    layer = last_layer(model)
    for done, (lora_id, direction) in enumerate(zip(missing, heads, strict=True), start=1):
        with new_folder(out / "adapters" / lora_id, scratch=out) as building:
            write_marker(building, probe, direction, layer)
        advance(done, len(missing))
    write_json(out / "markers.json", read_markers(out) | words)
    return missing


def missing_markers(out: Path, count: int) -> list[str]:
    """Return the lora_ids of markers 1 to ``count`` that ``out`` lacks."""
    known = read_markers(out)
    wanted = [marker_id(number) for number in range(1, count + 1)]
    return [i for i in wanted if i not in known or not (out / "adapters" / i).is_dir()]


def read_markers(out: Path) -> dict[str, str]:
    """Return markers.json: lora_id to word."""
    file = out / "markers.json"
    try:
        found: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as reason:
        raise DemoError(f"{file}: {reason}; remake the folder with --force") from reason
    return found


def last_layer(model: Path) -> int:
    """Return the index of the model's last layer."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return int(config["num_hidden_layers"]) - 1


def output_head(model: Path) -> "Tensor":
    """Return lm_head.weight ∘ final_norm.weight ([vocab, hidden], fp32).

    The head is tied to the token embeddings in this model.
    """
    from safetensors import safe_open

    with safe_open(model / WEIGHTS, framework="pt") as file:
        embedding = file.get_tensor("model.embed_tokens.weight").float()
        norm = file.get_tensor("model.norm.weight").float()
    head: Tensor = embedding * norm
    return head


def renew_keys(out: Path) -> None:
    """Put fresh keys into keys.json and their hashes into policy.yaml; other edits stay."""
    file = out / "keys.json"
    try:
        old: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as reason:
        raise DemoError(f"{file}: {reason}; remake the folder with --force") from reason
    keys = settings.new_keys()
    policy = (out / "policy.yaml").read_text(encoding="utf-8")
    write_file(out / "policy.yaml", settings.replace_hashes(policy, old, keys))
    write_json(file, keys, mode=0o600)
