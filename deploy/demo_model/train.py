#!/usr/bin/env python3
"""Makes the bundled demo model: a small Llama-style writer of tiny stories.

The script needs no data from outside.  It tells short stories from a grammar,
builds a 1024-piece tokenizer from them, trains a three-layer decoder on them
(JAX on the CPU) and writes a folder in the Hugging Face layout:

  config.json           the architecture
  model.safetensors     the weights, float32, Hugging Face tensor names
  vocab.json            the pieces and their merge scores
  expected_greedy.json  the story that greedy decoding writes

A story starts with <s> (id 1).  It has no end token of its own: the <s> of the
next story ends it, so a reader stops at the second <s>.

Modes:

  train.py                      train and write the folder
  train.py --sample             load the folder and write a story, computed by a
                                second implementation (numpy, float64)
  train.py --show 5             print stories straight from the grammar

The same seed on the same machine type gives the same files.  Other processors
may round differently, which changes the weights but not the kind of story.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import functools
import json
import math
import os
import random
import re
import struct
import sys
import time
from pathlib import Path

import numpy as np

# ---------------------------------------------------------------------------
# The grammar
# ---------------------------------------------------------------------------
#
# A story is a hero, one of six plots, and mostly a helper.  Every choice goes
# through Teller.pick, which prefers the early options: each option is RATIO
# times as likely as the one before it.  An uneven choice has a clear favourite,
# so greedy decoding never hangs on a coin toss.  Many choices are turned by the
# kind of hero, so that a fox and a duck have different favourites.

RATIO = 0.7
NAME_RATIO = 0.85

BOYS = ("Tom", "Finn", "Max", "Oliver", "Ben", "Leo", "Sam", "Jack", "Milo",
        "Toby", "Tim", "Otto", "Felix", "Charlie", "Hugo", "Pip")
GIRLS = ("Lily", "Mia", "Rosie", "Daisy", "Anna", "Ella", "Lucy", "Nina",
         "Ruby", "Clara", "Sue", "Emma", "Molly", "Poppy", "Alice", "Hazel")

ADJECTIVES = ("little", "brave", "clever", "kind", "shy", "merry", "curious",
              "gentle", "cheerful")

# Each kind of hero with the homes it may have.
KINDS = (
    ("fox", ("in a den at the edge of the forest",
             "in a den under an old oak tree")),
    ("rabbit", ("in a burrow under a green hill",
                "in a burrow behind the garden wall")),
    ("girl", ("in a small village by the sea",
              "in a little house near the forest",
              "on a farm with a red barn")),
    ("mouse", ("in a tiny house under the stairs",
               "in an old barn full of hay")),
    ("bear", ("in a cave near the waterfall",
              "in a cave high on the mountain")),
    ("duck", ("beside a quiet pond", "near the bend of the river")),
    ("boy", ("in a little house near the forest",
             "in a small village by the sea",
             "on a farm with a red barn")),
    ("cat", ("in a yellow house by the sea",
             "in a little shop in the village")),
    ("dog", ("on a farm with a red barn", "in a yellow house by the sea")),
    ("frog", ("near the bend of the river", "beside a quiet pond")),
    ("hedgehog", ("under an old oak tree",
                  "in the garden behind a stone wall")),
    ("squirrel", ("high in an old oak tree",
                  "in the tallest tree of the forest")),
)
HELPERS = ("owl", "turtle", "rabbit", "mouse", "mole", "duck", "bear", "hedgehog",
           "goose", "frog")

TIMES = ("One morning", "One sunny day", "One windy day", "One cold morning",
         "One day")

# noun, what one loves to do with it, the same in the past, where it was hiding
TREASURES = (
    ("kite", "fly it in the wind", "flew the {thing} in the wind",
     "in a tall tree"),
    ("ball", "throw it high into the air",
     "threw the {thing} high into the air", "in the long grass"),
    ("boat", "sail it on the pond", "sailed the {thing} on the pond",
     "among the reeds"),
    ("bell", "ring it in the morning", "rang the {thing} in the morning",
     "under a pile of leaves"),
    ("drum", "play it after supper", "played the {thing} after supper",
     "behind a big stone"),
    ("lantern", "light it in the evening", "lit the {thing} in the evening",
     "on a low branch"),
    ("flute", "play it under the stars", "played the {thing} under the stars",
     "on an old bench"),
)
COLOURS = ("red", "blue", "yellow", "green", "silver")
SEARCHES = ("under the bed and behind the door",
            "in the garden and down by the river",
            "in every basket and in every corner",
            "up the hill and along the road")

# what to learn, the first try, the advice, the success, who can teach it
SKILLS = (
    ("swim", "jumped into the water and sank like a stone",
     "Kick your feet and keep your head up", "swam all the way across the pond",
     ("duck", "frog", "turtle")),
    ("sing", "opened {his} mouth, but only a squeak came out",
     "Listen to the wind and sing along softly",
     "sang a song for the whole village", ("robin", "owl", "goose")),
    ("climb", "climbed on the old gate and fell into the mud",
     "Hold on tight and look up, not down",
     "climbed to the top of the tallest tree", ("squirrel", "cat", "goat")),
    ("dance", "spun around and fell over {his} own feet",
     "Count to three and take small steps",
     "danced all evening under the moon", ("goose", "rabbit", "cat")),
    ("bake", "put a loaf in the oven, and it came out black",
     "Stir it slowly and wait until it smells sweet",
     "baked warm bread for the whole village", ("bear", "hedgehog", "mole")),
    ("read", "opened a book, but all the letters looked the same",
     "Learn one letter each day", "read a whole story out loud",
     ("owl", "mouse", "turtle")),
)

# who is in trouble, the short name, its complaint, what the hero does, how it
# ends, and the thanks that come later
TROUBLES = (
    ("a small bird with a hurt wing", "bird", "I cannot fly",
     "wrapped the wing in a soft leaf",
     "After three days the bird could fly again",
     "Every morning after that, it sang a song at {his} window"),
    ("a lost lamb under a bush", "lamb", "I cannot find my mother",
     "took the lamb home over the hill",
     "Before it was dark, the lamb was with its mother again",
     "The next day the sheep gave {him} a ball of warm wool"),
    ("a tired bee on a cold stone", "bee", "I cannot get home",
     "carried the bee to a warm flower",
     "Soon the bee was buzzing in the sun",
     "The next day it brought {him} a small jar of honey"),
    ("a silver fish in a shallow pool", "fish", "I cannot reach the river",
     "carried the fish to the river in a bucket",
     "The fish swam three happy circles",
     "Later it showed {him} where the prettiest shells were"),
    ("a grey kitten in a tall tree", "kitten", "I cannot climb down",
     "put a long ladder against the tree",
     "The kitten came down step by step",
     "That night it slept at {his} feet"),
    ("a tiny ant in a puddle", "ant", "I cannot swim",
     "held out a long blade of grass",
     "The ant climbed up and was safe",
     "Later it came back with a pile of sweet berries"),
)
WALKS = ("by the river", "through the forest", "home from the market",
         "along the road")

# a strange noise and what made it
NOISES = (
    ("tap, tap, tap", "a branch knocking on the window"),
    ("hoo, hoo, hoo", "a sleepy owl singing to the moon"),
    ("drip, drip, drip", "the rain falling into an old bucket"),
    ("scratch, scratch, scratch", "a mole digging a new home"),
    ("creak, creak, creak", "the garden gate swinging in the wind"),
)
SUPPERS = ("drank warm milk with honey", "ate hot soup by the fire",
           "shared a big slice of apple cake")

# a present, how it was made, and how it was lost
PRESENTS = (
    ("a crown of flowers", "picked daisies in the meadow",
     "the wind blew the flowers away"),
    ("a cake with berries", "stirred and baked in the kitchen",
     "the cake fell on the floor"),
    ("a picture of the sea", "painted at the big table",
     "the rain washed the colours away"),
    ("a necklace of shells", "looked for shells on the beach",
     "a wave carried the shells away"),
    ("a house of sticks", "gathered sticks in the forest",
     "a storm knocked the house down"),
)

# where a key fits, what is behind it, and what they do with it
DOORS = (
    ("a small door in an old tree", "a room full of books",
     "read a new book together every evening"),
    ("a gate in a high wall", "a garden full of apple trees",
     "shared the apples with the whole village"),
    ("a chest under the bridge", "a music box that played a sweet song",
     "danced to the song until the stars came out"),
    ("a tower on the hill", "a telescope that looked at the moon",
     "looked at the moon and counted the stars"),
    ("a hut on the beach", "a boat with a white sail",
     "sailed around the bay every summer"),
)


class Teller:
    """Makes the random choices of one story and keeps count of them.

    `nats` sums -log(probability) over the choices: what the story costs at
    best, and so what a perfect model would reach as its loss.
    """

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.nats = 0.0

    def pick(self, options, turn=0, ratio=RATIO):
        """Picks an option; the one at index `turn` is the most likely."""
        size = len(options)
        weights = [ratio**i for i in range(size)]
        place = self.rng.random() * sum(weights)
        for i, weight in enumerate(weights):
            place -= weight
            if place < 0:
                break
        self.nats -= math.log(weights[i] / sum(weights))
        return options[(i + turn) % size]

    def chance(self, probability):
        """True with the given probability."""
        yes = self.rng.random() < probability
        self.nats -= math.log(probability if yes else 1 - probability)
        return yes

    def name(self, is_girl, turn, other=None):
        """A name for her or him that is not the other one's name."""
        names = [n for n in (GIRLS if is_girl else BOYS) if n != other]
        return self.pick(names, turn, NAME_RATIO)


def article(words):
    """The words with a or an in front."""
    return ("an " if words[0] in "aeiou" else "a ") + words


def tell_story(rng):
    """Tells one story.  Returns its text and its cost in nats."""
    t = Teller(rng)
    turn = t.rng.randrange(len(KINDS))
    t.nats += math.log(len(KINDS))
    kind, homes = KINDS[turn]
    is_girl = kind == "girl" or (kind != "boy" and t.chance(0.4))
    words = {
        "kind": kind,
        "hero": t.name(is_girl, turn),
        "a_hero": article(f"{t.pick(ADJECTIVES, turn)} {kind}"),
        "home": t.pick(homes),
    }
    if is_girl:
        words.update(he="she", him="her", his="her", He="She")
    else:
        words.update(he="he", him="him", his="his", He="He")

    def meet(kinds, shift=0):
        """Chooses the helper."""
        kinds = [k for k in kinds if k != kind]
        girl = t.chance(0.5)
        words["helper"] = t.name(girl, turn + shift, words["hero"])
        words["helper_kind"] = t.pick(kinds, turn if kinds[3:] else 0)
        adjective = t.pick(ADJECTIVES, turn + 3)
        words["a_helper"] = article(f"{adjective} {words['helper_kind']}")

    def say(*options):
        """Adds one of the given sentences to the story."""
        lines.append(t.pick(options))

    lines = []
    opening = t.pick(range(4))
    if opening == 0:
        lines.append("Once upon a time there was {a_hero} named {hero}."
                     " {He} lived {home}.")
    elif opening == 1:
        lines.append("Once upon a time, there was {a_hero} named {hero} who"
                     " lived {home}.")
    elif opening == 2:
        lines.append("Once upon a time, {home}, there lived {a_hero} named"
                     " {hero}.")
    else:
        lines.append("There once was {a_hero} called {hero}. {He} lived {home}.")

    plot = t.pick((lost, lesson, rescue, noise, present, key), turn)
    plot(t, turn, words, meet, say)

    text = " ".join(lines)
    for _ in range(2):  # twice, for the words inside the words
        text = text.format(**words)
    return text, t.nats


def lost(t, turn, words, meet, say):
    """A treasure is lost, and a friend helps to find it."""
    noun, words["love"], words["loved"], words["found"] = t.pick(TREASURES, turn)
    words["thing"] = f"{t.pick(COLOURS, turn)} {noun}"
    words["noun"] = noun
    words["time"] = t.pick(TIMES)
    words["search"] = t.pick(SEARCHES)
    meet(HELPERS)
    say("{hero} had a {thing} and loved to {love}.",
        "{hero} loved {his} {thing} more than anything.")
    say("{time}, the {noun} was gone.")
    say("{hero} looked {search}, but {he} could not find it.")
    say("{He} sat down and began to cry.", "{He} felt very sad.")
    say("Just then, {a_helper} named {helper} came by.",
        "Soon {a_helper} named {helper} came along.")
    say('"What is wrong?" asked {helper}.')
    say('"I have lost my {thing}," said {hero}.')
    say('"Do not cry," said {helper}. "I will help you look for it."',
        '"Let us look for it together," said {helper}.')
    say("They looked and looked until they saw the {noun} {found}.",
        "They looked all day, and at last they found the {noun} {found}.")
    say("{hero} was so happy that {he} danced.",
        "{hero} was so happy that {he} gave {helper} a big hug.",
        "{hero} laughed and jumped up and down.")
    say("From that day on, {hero} and {helper} {loved} together.",
        '"Thank you, {helper}," said {hero}. "You are a good friend."')


def lesson(t, turn, words, meet, say):
    """Something is hard to learn, and a teacher helps."""
    skills = [s for s in SKILLS if words["kind"] not in s[4]]
    verb, words["fail"], words["advice"], words["done"], teachers = t.pick(
        skills, turn)
    words["verb"] = verb
    words["time"] = t.pick(TIMES)
    meet(teachers, 1)
    say("More than anything, {hero} wanted to learn to {verb}.",
        "{hero} had one big wish: {he} wanted to learn to {verb}.")
    say("{time}, {he} {fail}.")
    say('"I will never learn to {verb}," said {hero}.',
        "{hero} felt silly and hid behind a tree.")
    say("But {a_helper} named {helper} had seen it all.",
        "Then {a_helper} named {helper} heard {him} and came closer.")
    say('"I can teach you," said {helper}. "{advice}."')
    say("{hero} tried once, and then {he} tried again.",
        "They practised every day for a week.")
    say("At last {he} {done}.")
    say("{hero} was very proud, and {helper} clapped and cheered.",
        '"You did not give up," said {helper} with a smile.')
    say("After that, {hero} was never afraid to try something new.",
        "They stayed friends for ever.")


def rescue(t, turn, words, meet, say):
    """The hero helps a small creature, which says thank you later."""
    (words["trouble"], words["it"], words["cannot"], words["help"],
     words["saved"], words["thanks"]) = t.pick(TROUBLES, turn)
    words["time"] = t.pick(TIMES)
    words["walk"] = t.pick(WALKS)
    say("{time}, {hero} was walking {walk} when {he} heard a soft cry.",
        "{time}, {hero} was walking {walk} when {he} heard a small voice.")
    say("It was {trouble}.")
    say('"Please help me," said the {it}. "{cannot}."')
    say('"Do not be afraid," said {hero}.', '"Of course," said {hero}.')
    say("{hero} {help}.", "So {he} {help}.")
    say("{saved}.")
    say('"Thank you for your kindness," said the {it}.',
        '"I will not forget you," said the {it}.')
    say("{thanks}.")
    say("{hero} was glad that {he} had stopped to help.",
        "And so {hero} had a new friend.",
        "{hero} smiled, because a kind heart is never alone.")


def noise(t, turn, words, meet, say):
    """A strange noise in the night is nothing to be afraid of."""
    words["sound"], words["source"] = t.pick(NOISES, turn)
    words["supper"] = t.pick(SUPPERS, turn)
    meet(HELPERS, 2)
    say("One dark night, {hero} heard a strange sound: {sound}.",
        "One night, {hero} woke up and heard a sound: {sound}.")
    say("{He} hid under the blanket and did not move.",
        '"Is it a monster?" {he} whispered.')
    say("In the end {he} ran to {his} friend {helper}, {a_helper}.")
    say('"There is something outside," said {hero}.')
    say('"Let us go and see," said {helper} and lit a candle.',
        '"We will look together," said {helper} in a calm voice.')
    say("They walked out into the dark and listened: {sound}.",
        "Slowly they opened the door and looked around.")
    say("It was only {source}!")
    say("{hero} and {helper} laughed and laughed.")
    say("Then they {supper}.")
    say("After that night, {hero} was not afraid of the dark any more.",
        "{hero} slept well that night and dreamed of the stars.")


def present(t, turn, words, meet, say):
    """A present goes wrong, but the friendship does not."""
    words["gift"], words["make"], words["mishap"] = t.pick(PRESENTS, turn)
    meet(HELPERS, 3)
    say("{hero} had a good friend, {a_helper} named {helper}.")
    say("Tomorrow was {helper}'s birthday, but {hero} had no present.")
    say("So {he} decided to make {gift}.",
        '"I will make {gift}," said {hero}.')
    say("All morning {he} {make}.", "All day long {he} {make}.")
    say("But on the way, {mishap}.", "But then {mishap}.")
    say("{hero} was very sad and told {helper} what had happened.",
        '"Now I have nothing for you," said {hero}.')
    say('"You are the best present of all," said {helper}.',
        '"I am just happy that you are here," said {helper}.')
    say("Together they made {gift} again, and it was even better.")
    say("They laughed and sang until the sun went down.",
        "It was the best birthday ever.")


def key(t, turn, words, meet, say):
    """A key is found, and a helper knows where it fits."""
    words["metal"] = t.pick(("golden", "silver", "rusty"), turn)
    words["place"] = t.pick(("in the grass", "on the beach", "under a stone"),
                            turn)
    words["door"], words["inside"], words["joy"] = t.pick(DOORS, turn)
    words["time"] = t.pick(TIMES)
    meet(HELPERS, 4)
    say("{time}, {hero} found a {metal} key {place}.")
    say('"What does it open?" {he} wondered.')
    say("{He} tried it on every door in the village, but it did not fit.",
        "{He} tried it on the garden gate, but it did not fit.")
    say("Then {he} met {a_helper} named {helper}.",
        "So {he} asked {a_helper} named {helper}.")
    say('"I know where it belongs," said {helper}. "Follow me."',
        '"I have seen the lock," said {helper}. "Come with me."')
    say("They walked for a long time and came to {door}.",
        "{helper} led the way to {door}.")
    say("The {metal} key turned with a soft click.")
    say("Inside there was {inside}.", "Inside they found {inside}.")
    say('"How wonderful!" said {hero}.', "{hero} could not believe {his} eyes.")
    say("From that day on, {hero} and {helper} were the best of friends.",
        "{hero} and {helper} {joy}.")


# ---------------------------------------------------------------------------
# The tokenizer
# ---------------------------------------------------------------------------

BOS, EOS, BYTE_0 = 1, 2, 3
WORD = re.compile(r" ?[A-Za-z]+| ?[^A-Za-z ]+| ")


class Tokenizer:
    """The pieces and the greedy merging of llama2.c.

    Encoding puts a space in front, splits into characters and then merges the
    adjacent pair whose joined text is the piece with the highest score, until
    no pair is a piece.  A character without a piece becomes its UTF-8 bytes.
    """

    def __init__(self, pieces):
        self.pieces = [text for text, _ in pieces]
        self.scores = [score for _, score in pieces]
        # The specials and the bytes are no text that could be matched.
        self.ids = {text: i for i, text in enumerate(self.pieces)
                    if i >= BYTE_0 + 256}

    @classmethod
    def load(cls, path):
        return cls(json.loads(path.read_text(encoding="utf-8"))["pieces"])

    @classmethod
    def build(cls, texts, size):
        """Byte-pair encoding: joins the most frequent pair again and again.

        Merges stay inside a word, so the words can be counted first.  The
        score of a piece is the negated order in which it was made; the
        encoder, which takes the highest score, thus repeats the merges in
        order.
        """
        counts = collections.Counter()
        for text in texts:
            counts.update(WORD.findall(" " + text))
        words = [list(word) for word in counts]
        weights = list(counts.values())
        chars = sorted({c for word in words for c in word})
        merged = []
        while BYTE_0 + 256 + len(merged) + len(chars) < size:
            pairs = collections.Counter()
            for word, weight in zip(words, weights):
                for pair in zip(word, word[1:]):
                    pairs[pair] += weight
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            merged.append("".join(best))
            for word in words:
                i = 0
                while i < len(word) - 1:
                    if (word[i], word[i + 1]) == best:
                        word[i:i + 2] = [merged[-1]]
                    i += 1
        pieces = [("<unk>", 0.0), ("\n<s>\n", 0.0), ("\n</s>\n", 0.0)]
        pieces += [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
        pieces += [(text, -float(i)) for i, text in enumerate(merged + chars)]
        return cls(pieces)

    def save(self, path):
        rows = ",\n".join(
            json.dumps([text, score], ensure_ascii=False)
            for text, score in zip(self.pieces, self.scores))
        path.write_text('{"pieces": [\n' + rows + "\n]}\n", encoding="utf-8")

    def encode(self, text):
        """The ids of the text, without <s>."""
        return self.merge(" " + text) if text else []

    def encode_story(self, text):
        """The same ids, word by word from a cache: no piece crosses a word."""
        return [token for word in WORD.findall(" " + text)
                for token in self.merge_word(word)]

    @functools.lru_cache(maxsize=None)
    def merge_word(self, word):
        return tuple(self.merge(word))

    def merge(self, text):
        ids = []
        for char in text:
            if char in self.ids:
                ids.append(self.ids[char])
            else:
                ids += [byte + BYTE_0 for byte in char.encode("utf-8")]
        while True:
            best = max(
                ((self.scores[joined], -i, joined)
                 for i, (a, b) in enumerate(zip(ids, ids[1:]))
                 if (joined := self.ids.get(self.pieces[a] + self.pieces[b]))),
                default=None)
            if best is None:
                return ids
            ids[-best[1]:2 - best[1]] = [best[2]]

    def decode(self, ids):
        """The text of the ids; <s> is left out."""
        data = b"".join(
            bytes([i - BYTE_0]) if BYTE_0 <= i < BYTE_0 + 256
            else self.pieces[i].encode("utf-8") for i in ids if i > EOS)
        return data.decode("utf-8", errors="replace").removeprefix(" ")


# ---------------------------------------------------------------------------
# The model
# ---------------------------------------------------------------------------

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 1024,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "torch_dtype": "float32",
}


def tensor_shapes(config):
    """The tensors under their Hugging Face names; projections are [out, in]."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden),
              "model.norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        for name, shape in {
                "input_layernorm": (hidden,),
                "self_attn.q_proj": (queries, hidden),
                "self_attn.k_proj": (keys, hidden),
                "self_attn.v_proj": (keys, hidden),
                "self_attn.o_proj": (hidden, queries),
                "post_attention_layernorm": (hidden,),
                "mlp.gate_proj": (inner, hidden),
                "mlp.up_proj": (inner, hidden),
                "mlp.down_proj": (hidden, inner)}.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    return shapes


def save_safetensors(path, tensors):
    """Writes float32 tensors, sorted by name, with an 8-byte aligned header."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, value in sorted(tensors.items()):
        size = 4 * value.size
        header[name] = {"dtype": "F32", "shape": list(value.shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, value in sorted(tensors.items()):
            file.write(np.ascontiguousarray(value, "<f4").tobytes())


def load_safetensors(path):
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            assert entry["dtype"] == "F32", name
            begin, end = entry["data_offsets"]
            tensors[name] = np.frombuffer(
                data[8 + size + begin:8 + size + end], "<f4").reshape(
                    entry["shape"])
    return tensors


class Reader:
    """The model in numpy and float64, one token at a time with a KV cache.

    It shares no code with the training below, so that each checks the other.
    """

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.tokenizer = Tokenizer.load(folder / "vocab.json")
        self.weights = {
            name: value.astype(np.float64) for name, value in
            load_safetensors(folder / "model.safetensors").items()}
        shapes = {name: value.shape for name, value in self.weights.items()}
        assert shapes == tensor_shapes(self.config), "the shapes do not fit"
        self.restart()

    def restart(self):
        layers = range(self.config["num_hidden_layers"])
        self.keys, self.values = [[] for _ in layers], [[] for _ in layers]

    def norm(self, x, name):
        scale = np.sqrt(np.mean(x * x) + self.config["rms_norm_eps"])
        return x / scale * self.weights[f"{name}.weight"]

    def rotate(self, heads, position):
        """Rotary embedding; the pairs are (i, i + head_dim / 2)."""
        half = heads.shape[1] // 2
        angles = position * self.config["rope_theta"]**(-np.arange(half) / half)
        cos, sin = np.cos(angles), np.sin(angles)
        a, b = heads[:, :half], heads[:, half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)

    def step(self, token):
        """Appends the token and returns the logits of the next one."""
        size = self.config["head_dim"]
        group = (self.config["num_attention_heads"] //
                 self.config["num_key_value_heads"])
        x = self.weights["model.embed_tokens.weight"][token]
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}"

            def project(name, value, layer=layer):
                return self.weights[f"{layer}.{name}_proj.weight"] @ value

            h = self.norm(x, f"{layer}.input_layernorm")
            position = len(self.keys[i])
            query = project("self_attn.q", h).reshape(-1, size)
            key = project("self_attn.k", h).reshape(-1, size)
            query = self.rotate(query, position)
            self.keys[i].append(self.rotate(key, position))
            self.values[i].append(project("self_attn.v", h).reshape(-1, size))
            keys, values = np.stack(self.keys[i]), np.stack(self.values[i])
            heads = []
            for head, q in enumerate(query):
                scores = keys[:, head // group] @ q / math.sqrt(size)
                scores = np.exp(scores - scores.max())
                heads.append(scores / scores.sum() @ values[:, head // group])
            x = x + project("self_attn.o", np.concatenate(heads))
            h = self.norm(x, f"{layer}.post_attention_layernorm")
            gate = project("mlp.gate", h)
            gate = gate / (1 + np.exp(-gate)) * project("mlp.up", h)
            x = x + project("mlp.down", gate)
        return (self.weights["model.embed_tokens.weight"] @
                self.norm(x, "model.norm"))

    def write(self, prompt="", limit=200, temperature=0.0, seed=0):
        """Continues <s> and the prompt until the next <s> or `limit` tokens.

        Returns the ids with the first <s>, and the smallest margin between the
        best and the second-best logit among the ids that were chosen.
        """
        rng = np.random.default_rng(seed)
        ids = [BOS] + self.tokenizer.encode(prompt)
        limit = min(limit, self.config["max_position_embeddings"])
        margin = math.inf
        self.restart()
        for token in ids:
            logits = self.step(token)
        while len(ids) < limit:
            second, first = np.sort(logits)[-2:]
            margin = min(margin, float(first - second))
            if temperature > 0:
                p = np.exp((logits - first) / temperature)
                token = int(rng.choice(len(p), p=p / p.sum()))
            else:
                token = int(np.argmax(logits))
            if token == BOS:
                break
            ids.append(token)
            logits = self.step(token)
        return ids, margin


# ---------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------


def make_corpus(seed, count):
    """Tells `count` stories.  Returns the texts and their total cost in nats."""
    rng = random.Random(seed)
    stories = [tell_story(rng) for _ in range(count)]
    return [text for text, _ in stories], sum(nats for _, nats in stories)


def make_rows(tokenizer, texts, length):
    """Cuts `<s> story <s> story ... <s>` into rows of `length` + 1 tokens.

    Every row starts with the <s> of a story; what does not fit is dropped.
    """
    rows, row = [], [BOS]
    for text in texts:
        row += tokenizer.encode_story(text) + [BOS]
        if len(row) > length:
            rows.append(row[:length + 1])
            row = [BOS]
    return np.array(rows, np.int32)


def keep_freed_memory():
    """Lets malloc keep large blocks, which glibc would return and fetch anew.

    That saves up to a third of the time, which went into page faults.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        arena_max, mmap_max, trim_threshold = -8, -4, -1
        mallopt(arena_max, 1)
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**30)


def train(args):
    # One thread keeps the order of the additions, and with it the result.
    flags = "--xla_cpu_multi_thread_eigen=false"
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    keep_freed_memory()
    import jax
    import jax.numpy as jnp

    config = CONFIG
    length = config["max_position_embeddings"]
    head_dim = config["head_dim"]
    group = config["num_attention_heads"] // config["num_key_value_heads"]

    started = time.monotonic()
    count = args.stories
    texts, nats = make_corpus(args.seed, count)
    held_out, held_nats = make_corpus(args.seed + 1, 400)
    tokenizer = Tokenizer.build(texts[:8000], config["vocab_size"])
    for text in held_out[:50]:
        ids = tokenizer.encode(text)
        assert ids == tokenizer.encode_story(text), "a piece crosses a word"
        assert tokenizer.decode(ids) == text, "the text does not come back"
    rows = make_rows(tokenizer, texts, length)
    held_rows = make_rows(tokenizer, held_out, length)
    tokens = sum(len(tokenizer.encode_story(text)) + 1 for text in texts)
    held_tokens = sum(len(tokenizer.encode_story(text)) + 1 for text in held_out)
    distinct = len(set(texts))
    print(f"{count} stories ({distinct} distinct), {tokens} tokens, "
          f"{tokens / count:.0f} a story; {len(rows)} rows of {length}")
    print(f"the choices of the grammar cost {nats / tokens:.4f} nats a token, "
          f"{held_nats / held_tokens:.4f} on the held-out stories")

    def forward(weights, ids):
        """The logits [batch, length, vocabulary] of the ids [batch, length]."""

        def norm(x, name):
            scale = jax.lax.rsqrt(
                jnp.mean(x * x, -1, keepdims=True) + config["rms_norm_eps"])
            return x * scale * weights[f"{name}.weight"]

        def split(x):
            return x.reshape(*x.shape[:2], -1, head_dim).swapaxes(1, 2)

        half = head_dim // 2
        angles = jnp.outer(jnp.arange(ids.shape[1]),
                           config["rope_theta"]**(-jnp.arange(half) / half))
        cos = jnp.tile(jnp.cos(angles), 2)
        sin = jnp.tile(jnp.sin(angles), 2)

        def rotate(x):
            turned = jnp.concatenate([-x[..., half:], x[..., :half]], -1)
            return x * cos + turned * sin

        causal = jnp.tri(ids.shape[1], dtype=bool)
        causal = jnp.tile(causal, (group, 1))
        embedding = weights["model.embed_tokens.weight"]
        x = embedding[ids]
        for i in range(config["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            attn, mlp = f"{layer}.self_attn", f"{layer}.mlp"
            h = norm(x, f"{layer}.input_layernorm")
            q = rotate(split(h @ weights[f"{attn}.q_proj.weight"].T))
            k = rotate(split(h @ weights[f"{attn}.k_proj.weight"].T))
            v = split(h @ weights[f"{attn}.v_proj.weight"].T)
            # The queries of a group stand one after the other in one matrix.
            q = q.reshape(*k.shape[:2], -1, head_dim)
            scores = q @ k.swapaxes(2, 3) / math.sqrt(head_dim)
            scores = jax.nn.softmax(jnp.where(causal, scores, -1e30), -1)
            heads = (scores @ v).reshape(len(ids), -1, ids.shape[1], head_dim)
            heads = heads.swapaxes(1, 2).reshape(*ids.shape, -1)
            x = x + heads @ weights[f"{attn}.o_proj.weight"].T
            h = norm(x, f"{layer}.post_attention_layernorm")
            gate = jax.nn.silu(h @ weights[f"{mlp}.gate_proj.weight"].T)
            gate = gate * (h @ weights[f"{mlp}.up_proj.weight"].T)
            x = x + gate @ weights[f"{mlp}.down_proj.weight"].T
        return norm(x, "model.norm") @ embedding.T

    def loss_of(weights, batch):
        logits = forward(weights, batch[:, :-1])
        chosen = jnp.take_along_axis(logits, batch[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

    def orthogonal(g):
        """Moves the singular values of a matrix near 1 (Newton-Schulz)."""
        wide = g.shape[0] <= g.shape[1]
        x = g if wide else g.T
        x = x / (jnp.linalg.norm(x) + 1e-7)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return x if wide else x.T

    @jax.jit
    def update(weights, first, second, step, batch):
        """One step: Muon for the projections, Adam for all other tensors.

        Muon gives every direction of a matrix a step of the same size, which
        learns this corpus faster than Adam alone.
        """
        loss, grads = jax.value_and_grad(loss_of)(weights, batch)
        pace = jnp.minimum((step + 1) / args.warmup,
                           (args.steps - step) / (args.steps - args.warmup))
        new = {}, {}, {}
        for name, w in weights.items():
            g, m, v = grads[name], first[name], second[name]
            if name.endswith("_proj.weight"):
                m = 0.95 * m + g
                move = args.muon_rate * orthogonal(g + 0.95 * m)
                move *= math.sqrt(max(1, w.shape[0] / w.shape[1]))
            else:
                m = 0.9 * m + 0.1 * g
                v = 0.98 * v + 0.02 * g * g
                move = args.adam_rate * (m / (1 - 0.9**(step + 1)) / (
                    jnp.sqrt(v / (1 - 0.98**(step + 1))) + 1e-8))
            new[0][name] = w - pace * move
            new[1][name], new[2][name] = m, v
        return *new, loss

    rng = np.random.default_rng(args.seed)
    weights = {}
    deep = 1 / math.sqrt(2 * config["num_hidden_layers"])
    for name, shape in tensor_shapes(config).items():
        if len(shape) == 1:
            weights[name] = np.ones(shape, np.float32)
            continue
        scale = 0.05 if "embed" in name else 1 / math.sqrt(shape[1])
        if "o_proj" in name or "down_proj" in name:
            scale *= deep
        weights[name] = (scale * rng.standard_normal(shape)).astype(np.float32)
    first = {name: np.zeros_like(w) for name, w in weights.items()}
    second = {name: np.zeros_like(w) for name, w in weights.items()}
    print(f"{sum(w.size for w in weights.values())} parameters; {args.steps} "
          f"steps of {args.batch} rows")

    held_loss = jax.jit(loss_of)
    order = np.empty(0, np.int64)
    trained = time.monotonic()
    average = None
    for step in range(args.steps):
        if len(order) < args.batch:
            order = np.concatenate([order, rng.permutation(len(rows))])
        batch, order = rows[order[:args.batch]], order[args.batch:]
        weights, first, second, loss = update(
            weights, first, second, np.float32(step), batch)
        loss = float(loss)
        average = loss if average is None else 0.98 * average + 0.02 * loss
        if (step + 1) % 50 == 0:
            spent = time.monotonic() - trained
            left = spent / (step + 1) * (args.steps - step - 1)
            print(f"step {step + 1:5d}  loss {average:.4f}  "
                  f"{spent:5.0f} s, {left:5.0f} s left", flush=True)
    final = float(held_loss(weights, held_rows))
    print(f"held-out loss {final:.4f} nats a token after "
          f"{time.monotonic() - trained:.0f} s of training")

    # Write the folder and read it back with the second implementation.
    args.folder.mkdir(parents=True, exist_ok=True)
    weights = {name: np.asarray(w) for name, w in weights.items()}
    (args.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_safetensors(args.folder / "model.safetensors", weights)
    tokenizer.save(args.folder / "vocab.json")
    reader = Reader(args.folder)
    ids = held_rows[0, :-1]
    ours = np.asarray(forward(weights, ids[None]))[0]
    theirs = np.array([reader.step(token) for token in ids])
    print(f"float32 and float64 logits differ by at most "
          f"{np.abs(ours - theirs).max():.1e}")

    ids, margin = reader.write()
    expected = {
        "token_ids": ids,
        "text": reader.tokenizer.decode(ids),
        "decoding": "greedy from <s>; stops before a second <s>",
    }
    (args.folder / "expected_greedy.json").write_text(
        json.dumps(expected, indent=1) + "\n")
    print(f"\nGreedy ({len(ids)} tokens, smallest margin {margin:.3f}):\n"
          f"{expected['text']}")
    for seed in range(3):
        ids, _ = reader.write(temperature=0.8, seed=seed)
        print(f"\nTemperature 0.8, seed {seed}:\n{reader.tokenizer.decode(ids)}")
    print(f"\nwrote {args.folder} in {time.monotonic() - started:.0f} s")


def sample(args):
    reader = Reader(args.folder)
    ids, margin = reader.write(args.prompt, args.limit, args.temperature,
                               args.seed)
    print(reader.tokenizer.decode(ids))
    print(f"\n{len(ids)} tokens with <s>; smallest margin between the best and "
          f"the second-best logit {margin:.4f}", file=sys.stderr)


def main():
    summary, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, metavar="DIR",
                        default=Path(__file__).resolve().parent,
                        help="the model folder to write or, with --sample, to "
                        "read (default: the folder of this script)")
    parser.add_argument("--seed", type=int, default=1,
                        help="seed of the corpus and the weights, of the drawn "
                        "tokens, or of the printed stories (default: 1)")
    modes = parser.add_argument_group("instead of training")
    modes.add_argument("--sample", action="store_true",
                       help="write a story with the model of the folder")
    modes.add_argument("--show", type=int, metavar="N",
                       help="print N stories from the grammar")
    drawing = parser.add_argument_group("options of --sample")
    drawing.add_argument("--prompt", default="", metavar="TEXT",
                         help="how the story begins (default: nothing)")
    drawing.add_argument("--temperature", type=float, default=0.0, metavar="T",
                         help="0 takes the likeliest token (default: 0)")
    drawing.add_argument("--limit", type=int, default=200, metavar="N",
                         help="stop at N tokens (default: 200)")
    training = parser.add_argument_group("options of training")
    training.add_argument("--stories", type=int, default=24000, metavar="N",
                          help="stories to tell (default: %(default)s)")
    training.add_argument("--steps", type=int, default=3000, metavar="N",
                          help="optimizer steps (default: %(default)s)")
    training.add_argument("--batch", type=int, default=4, metavar="N",
                          help="rows in a step (default: %(default)s)")
    training.add_argument("--muon-rate", type=float, default=0.02, metavar="R",
                          help="learning rate of the projections (default: "
                          "%(default)s)")
    training.add_argument("--adam-rate", type=float, default=4e-3, metavar="R",
                          help="learning rate of the rest (default: "
                          "%(default)s)")
    training.add_argument("--warmup", type=int, default=200, metavar="N",
                          help="steps to reach it (default: %(default)s)")
    args = parser.parse_args()
    if args.show:
        for text in make_corpus(args.seed, args.show)[0]:
            print(text, end="\n\n")
    elif args.sample:
        sample(args)
    else:
        train(args)


if __name__ == "__main__":
    main()
