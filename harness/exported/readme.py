"""README.md of an exported model."""

from __future__ import annotations

from harness.exported.description import Description
from harness.metrics.names import title_of


def readme_of(said: Description) -> str:
    """What the folder is and how to use it, for who finds it without us."""
    made, count = said.preprocessing, len(said.models)
    scores = said.record["scores"]["concatenated"]
    colours = "grey" if made.mode == "L" else "RGB"
    scored = ", ".join(f"{title_of(name)} {100 * value:.2f}%" for name, value in scores.items())
    models = (
        f"{count} models of {said.embedding_size} dimensions each" if count > 1 else "one model"
    )
    return "\n".join(
        [
            f"# {said.method}, trained on {said.dataset}",
            "",
            f"An image embedding model: {models}, {said.size} dimensions in total. "
            f"{said.made_by} exported it.",
            "",
            f"- Trunk: {said.trunk}. Protocol: {said.protocol}.",
            f"- Scores on the test classes: {scored}.",
            f"- Input: {colours} images, short side resized to {made.resize} px (bilinear), "
            f"middle {made.crop} x {made.crop} px.",
            "- `model.json` contains everything else, such as the normalisation of the pixels and "
            "the test record.",
            "",
            "```python",
            "import harness",
            "",
            'model = harness.load("THIS FOLDER")',
            f'embeddings = model.embed(["a.jpg", "b.jpg"])  # (2, {said.size}) float32, normalised',
            "```",
            "",
            "Loading needs no other file, and runs no code from this folder.",
            "",
            "## Licence",
            "",
            *(f"- {note}" for note in said.licence),
            "",
        ]
    )
