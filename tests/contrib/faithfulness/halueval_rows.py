"""Rows in HaluEval's four forms, of our own writing."""

import json
from pathlib import Path
from typing import Any

from levelhead.contrib.faithfulness.data import FaithfulnessItem, parse_row
from levelhead.tasks.files import Row

QA = {
    "knowledge": "The Marlow Clock was built in 1842 by Ida Fenn.The clock stands in the town of Brill.",
    "question": "Who built the clock that stands in Brill?",
    "right_answer": "Ida Fenn",
    "hallucinated_answer": "The clock was built by Hugo Stark, a famous engineer.",
}
DIALOGUE = {
    "knowledge": "Red Harbor was directed by Lena Moss. Red Harbor is a crime film.",
    "dialogue_history": "[Human]: I liked Red Harbor. [Assistant]: It is a crime film. [Human]: Who made it?",
    "right_response": "It was directed by Lena Moss.",
    "hallucinated_response": "It was directed by Otto Kern, who also made Blue Harbor.",
}
SUMMARY = {
    "document": "A storm cut power in Veldt on Monday. Crews restored power by Tuesday night. No one was hurt.",
    "right_summary": "A storm cut power in Veldt; crews restored it within two days.",
    "hallucinated_summary": "A flood destroyed the power plant of Veldt and killed three workers.",
}
VERDICT_YES = {
    "ID": "5",
    "user_query": "Name two rivers in France.",
    "chatgpt_response": "Two rivers in France are the Loire and the Danube. Both are long and well known.",
    "hallucination": "yes",
    "hallucination_spans": ["the Loire and the Danube"],
}
VERDICT_NO = {
    "user_query": "Name a colour.",
    "chatgpt_response": "Red is a colour. It is often seen on flags.",
    "hallucination": "no",
    "hallucination_spans": [],
}


def parse(row: dict[str, Any], **changes: Any) -> FaithfulnessItem:
    return parse_row(Row(Path("data.json"), 1, row | changes))


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return str(path)
