"""Small samples of our own writing in the public formats: rows as the authors' files and the hub's copies hold them."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contrib.fairness.bbq_rows import bbq_row

Rows = list[dict[str, Any]]

GSM8K: Rows = [
    {"question": "Ada has 3 pens and finds 4 more. How many?", "answer": "3 + 4 = <<3+4=7>>7 pens\n#### 7"},
    {
        "question": "Ben had $2,000 and spent $920. What is left?",
        "answer": "2,000 - 920 = <<2000-920=1080>>1,080\n#### 1,080",
    },
]
MATH: Rows = [
    {
        "problem": r"What is $\frac{1}{4}+\frac{1}{4}$?",
        "level": "Level 1",
        "type": "Prealgebra",
        "solution": r"Adding, we get $\boxed{\frac{1}{2}}$.",
    },
    {
        "problem": r"Solve $x^2=2$.",
        "level": "Level 5",
        "type": "Algebra",
        "solution": r"The roots are $\boxed{\sqrt{2}, -\sqrt{2}}$.",
    },
]
MATH_500: Rows = [
    {
        "problem": "What is $2+2$?",
        "solution": r"It is $\boxed{4}$.",
        "answer": "4",
        "subject": "Prealgebra",
        "level": 2,
        "unique_id": "test/prealgebra/1.json",
    },
    {
        "problem": "What is $2+3$?",
        "solution": r"It is $\boxed{5}$.",
        "answer": "5",
        "subject": "Prealgebra",
        "level": 3,
        "unique_id": "test/prealgebra/2.json",
    },
]
AIME: Rows = [
    {"id": 60, "problem": "Find $1+1$.", "solution": "It is 2.", "answer": "2", "url": "https://x.org", "year": "2024"},
    {"id": 61, "problem": "Find $7\\cdot 3$.", "solution": "", "answer": "021", "url": "https://x.org", "year": "2024"},
]
AIME_CAPITALS: Rows = [
    {"ID": "2024-I-1", "Problem": "Find $1+1$.", "Solution": "It is 2.", "Answer": 2},
    {"ID": "2024-I-2", "Problem": "Find $2+1$.", "Solution": "It is 3.", "Answer": 3},
]
HUMANEVAL: Rows = [
    {
        "task_id": f"HumanEval/{number}",
        "prompt": f"from typing import List\n\n\ndef add{number}(xs: List[int]) -> int:\n"
        f'    """Add {number} to the sum."""\n',
        "canonical_solution": f"    return sum(xs) + {number}\n",
        "test": f"\n\nMETADATA = {{}}\n\n\ndef check(candidate):\n    assert candidate([]) == {number}\n"
        f"    assert candidate([1, 2]) == 3 + {number}\n",
        "entry_point": f"add{number}",
    }
    for number in (0, 1)
]
MBPP: Rows = [
    {
        "text": "Write a function to double a number.",
        "code": "def double(x):\r\n  return 2 * x",
        "task_id": 601,
        "test_setup_code": "",
        "test_list": ["assert double(2) == 4", "assert double(0) == 0", "assert double(-1) == -2"],
        "challenge_test_list": [],
    },
    {
        "text": "Write a function to find the area of a circle.",
        "code": "import math\ndef area(r):\n  return math.pi * r * r",
        "task_id": 602,
        "test_setup_code": "",
        "test_list": ["assert math.isclose(area(1), 3.14159265, rel_tol=0.01)"],
        "challenge_test_list": [],
    },
]
MBPP_SANITIZED: Rows = [
    {
        "source_file": "ours",
        "task_id": 2,
        "prompt": "Write a function to find the shared elements.",
        "code": "def shared(a, b):\n  return tuple(set(a) & set(b))",
        "test_imports": ["import math"],
        "test_list": ["assert set(shared((1, 2), (2, 3))) == set((2,))"],
    },
]
HOTPOTQA: Rows = [
    {
        "_id": f"5a{number}",
        "question": f"In which town was the author of Book {number} born?",
        "answer": "Lower Slaughter",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [[f"Book {number}", 0], ["Una May", 1]],
        "context": [[f"Book {number}", ["It is a book.", " Una May wrote it."]], ["Una May", ["She was born there."]]],
    }
    for number in (1, 2)
]
HOTPOTQA_HUB: Rows = [
    {
        "id": "5a9",
        "question": "Is it so?",
        "answer": "yes",
        "type": "comparison",
        "level": "easy",
        "supporting_facts": {"title": ["A"], "sent_id": [0]},
        "context": {"title": ["A", "B"], "sentences": [["One.", " Two."], ["Three."]]},
    }
]


def drop_answer(number: str = "", spans: Sequence[str] = (), day: str = "", month: str = "", year: str = "") -> Any:
    return {"number": number, "date": {"day": day, "month": month, "year": year}, "spans": list(spans)}


DROP: dict[str, Any] = {
    "ours_1": {
        "passage": "The Reds scored 3 goals and the Blues 5. Ann and Bob scored on 9 May 1999.",
        "qa_pairs": [
            {
                "question": "How many goals were scored?",
                "query_id": "q1",
                "answer": drop_answer(number="8"),
                "validated_answers": [drop_answer(number="8"), drop_answer(spans=["eight"])],
            },
            {"question": "Who scored?", "query_id": "q2", "answer": drop_answer(spans=["Ann", "Bob"])},
        ],
        "wiki_url": "https://x.org",
    },
    "ours_2": {
        "passage": "It ended on 9 May 1999.",
        "qa_pairs": [{"question": "When?", "query_id": "q3", "answer": drop_answer(day="9", month="May", year="1999")}],
    },
}
DROP_HUB: Rows = [
    {
        "section_id": "ours_1",
        "query_id": f"q{number}",
        "passage": "Ann and Bob scored 8.",
        "question": f"Question {number}?",
        "answers_spans": {"spans": spans, "types": [kind] * len(spans)},
    }
    for number, (spans, kind) in enumerate(
        [
            (["Ann", "Bob"], "span"),
            (["8", "9"], "number"),
            (["Ann", "Bob", "Ann", "Bob"], "span"),
            (["Ann", "Ann B", "Ann"], "span"),
        ]
    )
]
BBQ: Rows = [bbq_row(), bbq_row(example_id=8, question="Who was good with technology?", label=0)]
HALUEVAL: Rows = [
    {
        "knowledge": f"The {colour} house stands in Oslo.",
        "question": f"Where does the {colour} house stand?",
        "right_answer": "Oslo",
        "hallucinated_answer": "It stands in Rome.",
    }
    for colour in ("red", "blue")
]
HALUEVAL_GENERAL: Rows = [
    {
        "ID": str(n),
        "user_query": f"Query {n}",
        "chatgpt_response": "A reply.",
        "hallucination": "no",
        "hallucination_spans": [],
    }
    for n in (1, 2)
]
TRUTHFULQA: Rows = [
    {
        "Type": "Adversarial",
        "Category": "Weather",
        "Question": f"What happens if {count} clouds meet?",
        "Best Answer": "Nothing happens",
        "Best Incorrect Answer": "They ring",
        "Correct Answers": "Nothing happens; They drift on",
        "Incorrect Answers": "They ring; They turn green; It snows",
        "Source": "https://x.org",
    }
    for count in ("two", "three")
]
TRUTHFULQA_MC: Rows = [
    {
        "question": "What do bees sing?",
        "mc1_targets": {"Nothing": 1, "Opera": 0, "Jazz": 0},
        "mc2_targets": {"Nothing": 1, "They hum": 1, "Opera": 0, "Jazz": 0},
    }
]
TRUTHFULQA_HUB: Rows = [
    {
        "question": "What do bees sing?",
        "mc1_targets": {"choices": ["Nothing", "Opera"], "labels": [1, 0]},
        "mc2_targets": {"choices": ["Nothing", "Opera"], "labels": [1, 0]},
    }
]
TRUTHFULQA_GENERATION: Rows = [
    {
        "type": "Adversarial",
        "category": "Music",
        "question": "What do bees sing?",
        "best_answer": "Nothing",
        "correct_answers": ["Nothing", "They hum"],
        "incorrect_answers": ["Opera"],
        "source": "https://x.org",
    }
]

SAMPLES: dict[str, Rows] = {
    "gsm8k": GSM8K,
    "math": MATH,
    "aime": AIME,
    "humaneval": HUMANEVAL,
    "mbpp": MBPP,
    "hotpotqa": HOTPOTQA,
    "drop": DROP_HUB,
    "bbq": BBQ,
    "halueval": HALUEVAL,
    "truthfulqa": [*TRUTHFULQA_GENERATION, {**TRUTHFULQA_GENERATION[0], "question": "What do wasps sing?"}],
}
"""Two rows or more of every data set, in a shape that JSON Lines can hold."""


def lines(rows: Sequence[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_lines(path: Path, rows: Sequence[Any]) -> str:
    path.write_text(lines(rows), encoding="utf-8")
    return str(path)


def write_gzip(path: Path, rows: Sequence[Any]) -> str:
    path.write_bytes(gzip.compress(lines(rows).encode()))
    return str(path)


def write_csv(path: Path, rows: Rows) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)
