"""Writes the prompt files of the benchmark beside itself. All wording is the project's own.

    python bench/prompts/make.py

Chat and code are questions as people ask them. Extraction prompts hold a text whose spans the answer repeats, with what
a perfect answer would be. Long prompts are logbooks of about 4,000 tokens, drawn with a fixed seed, and a question
about them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

CHAT = """
Why does bread need time to rise?
Write a short story about a fox who opens a bakery.
How do I get red wine out of a white shirt?
Explain what a black hole is to a ten-year-old.
Give me five ideas for a rainy Sunday with two children.
What should I look for when I buy a used bicycle?
Write a polite message to a neighbour whose dog barks at night.
What is the difference between weather and climate?
Suggest a simple dinner with potatoes, eggs and spinach.
How does a refrigerator keep food cold?
Write a four-line poem about the first snow.
I can't fall asleep before an exam. What may help?
Name three things to see in Lisbon and say why.
What does a librarian do all day?
Explain how to tie a bowline knot.
Why is the sky red in the evening?
Write a birthday wish for a colleague I hardly know.
How can I save money on heating this winter?
What are the steps to plant tomatoes on a balcony?
Tell me a fact about octopuses that most people don't know.
Is it better to run in the morning or in the evening?
Write the opening paragraph of a detective story set in a lighthouse.
How do vaccines work?
What can I cook for a guest who eats no dairy?
Explain compound interest with an example.
My houseplant has yellow leaves. What could be wrong?
Write a short apology to a customer whose parcel came late.
What is the purpose of a comma?
How do bees find their way home?
Describe a market in the early morning in a few sentences.
How should I prepare for a job interview?
What makes a good password?
Tell me about the invention of the printing press.
Why do cats purr?
Write a dialogue between a river and a bridge.
How long should I boil an egg, and why does it matter?
What is a good way to learn twenty new words a day?
Explain what inflation means for someone with savings.
Recommend three board games for four adults.
How do I change a flat tyre on a bicycle?
Write a toast for my sister's wedding.
What are the main differences between a frog and a toad?
How does a sailing boat move against the wind?
Give me tips for a first camping trip.
Explain why leaves change colour in autumn.
Write an advertisement for an umbrella that never turns inside out.
What should be in a first-aid kit?
How do I ask my boss for a day off?
What happens to a letter after I post it?
Describe the taste of a lemon to someone who has never had one.
How do noise-cancelling headphones work?
Plan a one-day trip to the sea by train.
What is the best way to store fresh herbs?
Write a short letter to my future self.
Why do we have leap years?
What are good questions to ask on a first date?
Explain the rules of chess in simple words.
How can a small office reduce its paper waste?
Write a limerick about a clock that runs late.
What does a conductor of an orchestra do?
How do I start keeping a diary?
Tell me how glass is made.
What should I pack for a week in the mountains?
Give me three reasons to learn a musical instrument as an adult.
"""

CODE = """
Write a Python function that returns the n-th Fibonacci number without recursion.
Write a Python function that checks whether a string is a palindrome, ignoring case and spaces.
Write a JavaScript function that removes duplicates from an array.
Write a SQL query that lists the ten customers with the highest total order value.
Write a Python class for a stack with push, pop and peek.
Write a C function that reverses a string in place.
Write a Python script that counts how often each word occurs in a text file.
Write a Bash script that renames all .jpeg files in a folder to .jpg.
Write a Python function that merges two sorted lists.
Write a Java method that finds the largest number in an array.
Write a Python generator that yields prime numbers.
Write an HTML page with a form for a name and an e-mail address.
Write a Python function that converts a Roman numeral to an integer.
Write a regular expression that matches dates like 2024-03-17, and explain it.
Write a Python decorator that prints how long a function took.
Write a Go function that reads a file line by line and returns the lines.
Write a Python function that flattens a list of lists.
Write a CSS rule set for a navigation bar with three links.
Write a Python function that finds the longest common prefix of a list of strings.
Write a TypeScript interface for a book and a function that sorts books by year.
Write a Python function that computes the greatest common divisor of two numbers.
Write a Rust function that sums the even numbers of a slice.
Write a Python context manager that changes the working directory and changes it back.
Write a SQL statement that creates a table of students with a unique e-mail address.
Write a Python function that transposes a matrix given as a list of rows.
Write a JavaScript function that waits for a number of milliseconds.
Write a Python function that groups words by their first letter.
Write a C++ class for a point with a method that computes the distance to another point.
Write a Python function that validates an IPv4 address.
Write a Dockerfile for a small Flask application.
Write a Python function that performs a binary search.
Write a Ruby method that capitalises every word of a sentence.
Write a Python dataclass for an invoice line and a property for its total.
Write a shell command that finds the five largest files below the current folder, and explain it.
Write a Python function that rotates a list by k places.
Write a Kotlin function that returns the distinct characters of a string.
Write a Python function that parses a line of comma-separated numbers.
Write a JavaScript function that debounces another function.
Write a Python unit test for a function add(a, b).
Write a PHP function that escapes text for HTML.
Write a Python function that computes the moving average of a list.
Write a Makefile with targets for build, test and clean.
Write a Python function that checks whether two words are anagrams.
Write a C program that prints a multiplication table.
Write a Python function that removes all vowels from a text.
Write a Swift function that swaps two values.
Write a Python function that returns the second-largest number of a list.
Write a SQL query that counts orders for each month of last year.
Write a Python function that encodes text with a Caesar cipher.
Write a JavaScript class for a bank account with deposit and withdraw.
Write a Python function that formats a number of seconds as hours, minutes and seconds.
Write a YAML file for a workflow that runs tests on every push.
Write a Python function that finds all pairs in a list with a given sum.
Write a Scala function that reverses a list.
Write a Python function that reads JSON from a file and returns a dictionary.
Write a Lua function that counts the characters of a string.
Write a Python function that computes a factorial with a loop.
Write an R function that returns the median of a vector.
Write a Python function that splits a list into chunks of n items.
Write a Perl one-liner that prints lines longer than 80 characters, and explain it.
Write a Python function that converts Celsius to Fahrenheit and back.
Write a Java class for a queue that is built from two stacks.
Write a Python function that draws a triangle of stars.
Write a Python function that computes the Levenshtein distance of two words.
"""

GOODS = ("oak table", "brass lamp", "wool blanket", "steel kettle", "garden hose", "paper lantern", "leather bag",
         "glass vase", "copper pan", "linen shirt", "wall clock", "desk chair", "rain coat", "tea pot", "bread knife",
         "picture frame", "tool box", "reading lamp", "cork board", "water bottle")  # fmt: skip
TOWNS = ("Porto", "Ghent", "Tartu", "Malmo", "Graz", "Turin", "Leeds", "Brno", "Lyon", "Cadiz", "Bergen", "Ulm")
PEOPLE = ("Ana Lopes", "Bram Peeters", "Carla Ricci", "Daan Visser", "Eva Novak", "Finn Olsen", "Greta Lang",
          "Hugo Martin", "Ines Costa", "Jonas Berg", "Karin Holm", "Luca Conti", "Mira Tamm", "Nils Dahl")  # fmt: skip

SNIPPETS = (
    ("node", "entry", """def find(head, key):
    node = head
    steps = 0
    while node is not None:
        if node.key == key:
            return node.value, steps
        node = node.next
        steps += 1
    raise KeyError(key)"""),
    ("words", "tokens", """def most_common(text, limit):
    words = text.lower().split()
    counts = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    ranked = sorted(counts, key=counts.get, reverse=True)
    print(len(words))
    return ranked[:limit]"""),
    ("total", "amount", """def add_up(items):
    total = 0
    for item in items:
        if item.price < 0:
            raise ValueError("negative price")
        total += item.price * item.count
    if total > 100:
        total = total - 5
    return total"""),
    ("buf", "buffer", """def read_all(stream, size):
    buf = bytearray()
    while True:
        chunk = stream.read(size)
        if not chunk:
            break
        buf.extend(chunk)
    if len(buf) == 0:
        raise EOFError("nothing to read")
    return bytes(buf)"""),
)  # fmt: skip

WATCHES = ("The pumps were tested and found dry.", "A fishing boat passed at two miles and was greeted.",
           "The lamp was cleaned and the wick replaced.", "Rain stopped before noon and the deck was scrubbed.",
           "A letter for the keeper arrived with the supply boat.", "The radio answered on the second call.",
           "Fog came in from the west and the horn was sounded.", "Two gulls nested on the north rail.",
           "The generator ran for three hours without a fault.", "The stairs were painted up to the second landing.",
           "The barometer was falling slowly all evening.", "A loose shutter was fastened with screws.")  # fmt: skip


def conversation(id: str, text: str, **more: str) -> dict[str, Any]:
    return {"id": id, "messages": [{"role": "user", "content": text}], **more}


def questions(name: str, text: str) -> Iterator[dict[str, Any]]:
    for i, line in enumerate(text.strip().splitlines(), 1):
        yield conversation(f"{name}-{i:02}", line)


def extractions() -> Iterator[dict[str, Any]]:
    """Four kinds, in turn: a list, the first lines of a log, the text of an e-mail, code with one name changed."""
    for i in range(16):
        draw = random.Random(1000 + i)
        kind, sentences = i % 4, draw.sample(WATCHES, 9)
        sender, receiver = draw.sample(PEOPLE, 2)
        if kind == 0:
            wanted = "\n".join(
                f"{item}: {draw.randint(2, 99)}.{draw.randint(10, 99)}, stored in {draw.choice(TOWNS)}"
                for item in draw.sample(GOODS, 8)
            )
            ask = f"Repeat the following list word for word.\n\n{wanted}"
        elif kind == 1:
            lines = [f"Monday {8 + n}:00, {sender}: {sentence}" for n, sentence in enumerate(sentences)]
            wanted = "\n".join(lines[:6])
            ask = "\n".join(lines) + "\n\nRepeat the first six lines of this log word for word."
        elif kind == 2:
            wanted = " ".join(sentences)
            head = f"From: {sender}\nTo: {receiver}\nSubject: The week"
            ask = f"Extract the message from this e-mail and repeat it word for word.\n\n{head}\n\n{wanted}"
        else:
            old, new, code = SNIPPETS[i // 4]
            ask = f"Rewrite this Python function with the variable `{old}` renamed to `{new}`. Change nothing else.\n\n"
            ask += f"```python\n{code}\n```"
            wanted = re.sub(rf"\b{old}\b", new, code)
        yield conversation(f"extract-{i + 1:02}", ask, expected=wanted)


def logbook(seed: int, entries: int) -> tuple[str, list[tuple[str, str]]]:
    """A logbook, and (day, keeper) of its entries."""
    draw = random.Random(seed)
    lines, keepers = [], []
    for n in range(1, entries + 1):
        keeper, notes = draw.choice(PEOPLE), draw.sample(WATCHES, 3)
        wind = f"wind {draw.choice(('north', 'east', 'south', 'west'))} {draw.randint(1, 9)}"
        lines.append(
            f"Day {n}. Keeper: {keeper}. {wind.capitalize()}, {draw.randint(2, 19)} degrees. {' '.join(notes)}"
        )
        keepers.append((f"Day {n}", keeper))
    return "\n".join(lines), keepers


def long_prompts(entries: int = 74) -> Iterator[dict[str, Any]]:
    for i in range(16):
        text, keepers = logbook(2000 + i, entries)
        day, keeper = keepers[entries // 2 + i]
        ask = f"This is the logbook of a lighthouse.\n\n{text}\n\nWho was the keeper on {day}? Answer in one sentence."
        yield conversation(f"long-{i + 1:02}", ask, expected=keeper)


def prefix_prompts(entries: int = 74) -> Iterator[dict[str, Any]]:
    """One document, four questions: all but the last few tokens are the same."""
    text, keepers = logbook(3000, entries)
    for i, at in enumerate((9, 27, 45, 63)):
        day, keeper = keepers[at]
        ask = f"This is the logbook of a lighthouse.\n\n{text}\n\nWho was the keeper on {day}? Answer in one sentence."
        yield conversation(f"prefix-{i + 1}", ask, expected=keeper)


def files() -> dict[str, Iterable[dict[str, Any]]]:
    """All files by name."""
    return {
        "chat.jsonl": questions("chat", CHAT),
        "code.jsonl": questions("code", CODE),
        "extract.jsonl": extractions(),
        "long.jsonl": long_prompts(),
        "prefix.jsonl": prefix_prompts(),
    }


def main() -> None:
    for name, lines in files().items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
