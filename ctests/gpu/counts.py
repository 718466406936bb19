"""Counts of what was compared and of what was wrong; without any framework."""


class Counts:
    def __init__(self):
        self.count, self.failures, self.notes = 0, [], []

    def true(self, what, good):
        self.count += 1
        if not good:
            self.failures.append(what)
