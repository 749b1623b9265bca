"""What people say to a model that is no problem with numbers, and what the tiny policy answers. Plain data, no state."""

from __future__ import annotations

GREETINGS = [
    "Hi",
    "Hello",
    "Hey",
    "Hi there",
    "Hello there",
    "Good morning",
    "Good evening",
    "Hey, how are you?",
    "How are you?",
    "Hello, is anybody there?",
    "Are you there?",
    "Test",
    "Hi, can you help me?",
    "Can you help me with my homework?",
    "Yo",
    "Howdy",
]
ABOUT = [
    "Who are you?",
    "What are you?",
    "What can you do?",
    "What do you know?",
    "Help",
    "What can I ask you?",
    "Are you a robot?",
    "Are you an AI?",
    "What is your name?",
    "How does this work?",
    "Tell me about yourself.",
    "What should I ask?",
    "Are you ChatGPT?",
    "Can you learn?",
]
HELLO = [
    "Hi! Give me a small problem with numbers.",
    "Hello! Which problem shall we solve?",
    "Hi there! Tell me how many there are and what happens, and I count.",
]
ABOUT_ME = [
    "I am a tiny model. I solve small problems with plus, minus and times.",
    "I only know small problems, like: Tom has 3 apples and gets 4 more. How many?",
    "I can add, take away and multiply. Give me a problem with two numbers.",
]
NO_IDEA = [
    "I don't know that. I only solve small problems with numbers.",
    "Sorry, I only know problems with two numbers. Give me one.",
    "I can't help with that. Ask me how many there are of something.",
]
WELCOME = [
    "You're welcome! Give me the next problem.",
    "Glad to help. What is the next one?",
    "Good. Ask me another one.",
]
