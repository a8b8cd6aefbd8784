"""Makes data with small pictures in verl's form: `python verl_e2e_make_images.py FOLDER`.

It runs in the job's own Python, with the Pillow and datasets of the run. Each row is an exercise about one picture:
how many squares it shows and one more number to add, so the answer can be computed from the row alone, and verl's
reward for `openai/gsm8k` judges it. Equal libraries give equal files. The last line of the output is a JSON object:
what was made, or `problem`.
"""

import io
import json
import sys
from pathlib import Path

from verl_e2e_make_model import new_folder, turn

_ROWS = {"train": 256, "test": 32}
DATA_SOURCE = "openai/gsm8k"
QUESTION = (
    "<image>How many squares does the picture show? Add {more} to it. Let's think step by step and output the final "
    'answer after "####".'
)
# Width and height in pixels: never equal, and not the same in every row, so that a swap of the two shows.
SIZES = ((112, 84), (84, 112), (140, 84), (84, 140))
# Squares lie on a grid, so that none hides another one.
CELL = 28
BACKGROUND = (250, 250, 245)
COLOURS = ((200, 30, 30), (30, 140, 60), (40, 70, 200), (230, 150, 20))


def main():
    """Write both files into the folder, which appears when they are whole."""
    folder = Path(sys.argv[1])
    try:
        with turn(folder), new_folder(folder) as unfinished:
            for split, count in _ROWS.items():
                write(split, count, unfinished / f"{split}.parquet")
    except Exception as error:
        sys.stdout.write(json.dumps({"problem": f"{type(error).__name__}: {error}"[:1000]}) + "\n")
        return 1
    sys.stdout.write(json.dumps({"rows": _ROWS}) + "\n")
    return 0


def write(split, count, file):
    """Write the rows of a split as verl's geo3k script writes them: a list of pictures in the column `images`."""
    from datasets import Dataset, Features, Image, Sequence, Value

    text, number = Value("string"), Value("int64")
    features = Features(
        {
            "data_source": text,
            "prompt": [{"role": text, "content": text}],
            "images": Sequence(Image()),
            "ability": text,
            "reward_model": {"style": text, "ground_truth": text},
            "extra_info": {"split": text, "index": number, "answer": text, "question": text},
        }
    )
    rows = [row(split, index) for index in range(count)]
    Dataset.from_list(rows, features=features).to_parquet(str(file))


def row(split, index):
    """One exercise; rows of the test follow those of the training, so none is in both."""
    place = index + (_ROWS["train"] if split == "test" else 0)
    # Two numbers that run through their values at different paces: each pair comes before any comes twice.
    squares, more = 1 + place % 9, 10 + place % 80
    question, answer = QUESTION.format(more=more), str(squares + more)
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": question}],
        "images": [{"bytes": picture(squares, place), "path": None}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
    }


def picture(squares, place):
    """A PNG file with so many squares; `place` decides its size, their cells and their colours."""
    from PIL import Image, ImageDraw

    width, height = SIZES[place % len(SIZES)]
    image = Image.new("RGB", (width, height), BACKGROUND)
    draw = ImageDraw.Draw(image)
    columns, cells = width // CELL, (width // CELL) * (height // CELL)
    for square in range(squares):
        # A step without a common divisor with the number of cells (12 or 15) leads to another cell each time.
        cell = (place + square * 7) % cells
        left, top = cell % columns * CELL + 4, cell // columns * CELL + 4
        draw.rectangle((left, top, left + CELL - 9, top + CELL - 9), fill=COLOURS[(place + square) % len(COLOURS)])
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


if __name__ == "__main__":
    sys.exit(main())
