"""Vocabulary of the generated problems. Plain data, no state."""

# ruff: noqa: SIM905

from __future__ import annotations

NAMES = (
    "Tom Anna Ben Mia Sam Lily Jack Emma Leo Nora Max Ruth Paul Kate Omar Sara Ivan Lucy Hugo Rosa Amir Zoe Carl Dana "
    "Eli Fay Gus Hana Ian Jill Ken Lara Mark Nina Oscar Pia Quinn Ravi Sofia Tina Uma Vera Will Yara Adam Bella Chris "
    "Diana Erik Fiona"
).split()
OBJECTS = (
    "apples pears books pencils marbles cards coins stickers cookies eggs shells stones stamps toys balls flowers "
    "tickets candles cups plates hats socks buttons beads cakes bottles bags boxes chairs tables lemons oranges melons "
    "carrots tomatoes dollars puzzles ropes kites cars trucks ducks chickens fish sheep pages photos letters songs games"
).split()
EVERYDAY_NAMES = (
    "John Mary Peter Susan Bob Alice David Maria James Laura Alex Eva Daniel Julia Mike Sarah Grandma Dad Mom"
).split()
EVERYDAY_OBJECTS = (
    "bananas cats dogs euros friends phones beers sandwiches pizzas candies chocolates keys shirts shoes flowers trees "
    "birds horses bikes houses rooms windows glasses forks spoons potatoes onions grapes cherries peaches strawberries "
    "donuts muffins pies cows pigs pens papers rocks bricks lamps mugs tickets points coins problems things eggs toys"
).split()
PLACES = (
    "the market, the park, school, the farm, the beach, the store, the library, the garden, home, the city, the zoo, "
    "the fair, the kitchen, the office, the station"
).split(", ")
CONTAINERS = "boxes bags baskets packs jars shelves rows crates trays drawers".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
ADJECTIVES = "red blue small large old new green yellow heavy fresh tiny round wooden cheap favorite".split()
KIN = "brother sister mother father friend cousin uncle aunt teacher neighbor".split()
VERBS = "likes wants needs loves keeps collects sells paints counts carries washes makes".split()

FILLERS = [
    "It is a sunny {day}.",
    "{name} lives near {place}.",
    "{name} {verb} {adjective} {things}.",
    "Every {day} {name} goes to {place} with a {kin}.",
    "The {kin} of {name} {verb} {things} too.",
    "{name} works at {place} during the week.",
    "After lunch, {name} and {other} walk to {place}.",
    "They want to share the {things} later.",
    "{other} is the {kin} of {name}.",
    "The {adjective} {things} are for the {kin}.",
    "During the summer, {name} spends every {day} at {place}.",
    "On {day} the weather was cold, so {name} stayed at {place}.",
    "{name} and {other} decide to count all of the {things} together.",
    "The price of the {things} did not change.",
    "If nobody takes any of the {things}, they stay at {place}.",
    "In the first week, {other} {verb} {things} at {place}.",
    "At the end of the month, {name} will give the {things} to {other}.",
    "Each of the {things} has the same size.",
]
SPICE = (
    "total cost half twice times per hour minutes week month year percent less than each other same price left "
    "remaining spent bought sold gave received earned paid shared divided between among people children students class "
    "team miles feet inches pounds gallons water milk bread money job work trip train bus speed average number amount "
    "double triple third quarter first second third fourth last next day night morning evening long tall old young many "
    "much more fewer together altogether need make take find"
).split()
FUNCTION_WORDS = (
    "the a of and to in for with at from by on if then she he they it her his their who which that this was were is are "
    "has had will would can could should do does did not no as so but when while how what plus also only into out up "
    "use write answer plain number list words text like person student natural simple show give without bold steps "
    "please question sentences casual keep formatting looks good thanks next"
).split()
SYLLABLES = (
    "ba be bi bo da de di do fa fe ga go ha he ka ki ko la le li lo ma me mi mo na ne ni no pa pe po ra re ri ro sa se "
    "si so ta te ti to va ve wa wi za ing er est ly tion ent ch sh th st pr tr gr ck ss"
).split()
