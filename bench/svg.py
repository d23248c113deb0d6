"""Line plots as SVG text: linear or logarithmic axes, one colour per series, a legend beside."""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 70, 130, 36, 48
COLOURS = ["#0b6e4f", "#c1440e", "#2a5caa", "#8a4fa3", "#b8860b", "#3c8d93", "#777777", "#c2185b", "#5d4037", "#455a64",
           "#9e9d24", "#00838f", "#ad1457", "#000000"]


class Axis:
    """Values to positions between `low` and `high` pixels."""

    def __init__(self, values, low, high, log=False, zero=False):
        self.log, self.low, self.high = log, low, high
        top, bottom = max(values, default=1), 0 if zero and not log else min(values, default=0.1)
        if log:
            self.first, self.last = math.log10(bottom), math.log10(top)
            if zero:  # an axis that would begin at zero begins at a decade
                self.first, self.last = math.floor(math.log10(min(values))), math.ceil(self.last)
        else:
            self.step = nice_step((top - bottom) or 1)
            self.first, self.last = math.floor(bottom / self.step) * self.step, math.ceil(top / self.step) * self.step
        if self.first == self.last:
            self.last += 1

    def place(self, value):
        at = (math.log10(value) if self.log else value) - self.first
        return self.low + (self.high - self.low) * at / (self.last - self.first)

    def ticks(self, values):
        """For logarithmic axes the values themselves, which are few, or decades; else round numbers."""
        if self.log:
            return sorted(set(values)) or [10**power for power in range(int(self.first), int(self.last) + 1)]
        count = round((self.last - self.first) / self.step)
        return [self.first + number * self.step for number in range(count + 1)]


def nice_step(span):
    """A step of 1, 2 or 5 times a power of ten that gives four to nine ticks."""
    power = 10 ** math.floor(math.log10(span / 5))
    return next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 8)


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(str(words))}</text>'


def grid(across, up, x_values, x_label, y_label):
    found = []
    for value in up.ticks([]):
        y = up.place(value)
        found.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        found.append(text(LEFT - 6, y + 4, f"{value:g}", "end"))
    for value in across.ticks(x_values):
        x = across.place(value)
        found.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 5}" stroke="#333"/>')
        found.append(text(x, HEIGHT - BOTTOM + 18, f"{value:g}"))
    found.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}" stroke="#333"/>')
    found.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label))
    turned = f' transform="rotate(-90 16 {HEIGHT / 2:.0f})"'
    return found + [text(16, HEIGHT / 2, y_label, more=turned)]


def plot(title, x_label, y_label, series, log_x=False, log_y=False, marks=True, limit=None):
    """`series` is a list of (name, [(x, y)]); `limit` draws a dashed line at that height."""
    xs = [x for _, points in series for x, _ in points]
    ys = [y for _, points in series for _, y in points] + ([limit] if limit else [])
    across, up = Axis(xs, LEFT, WIDTH - RIGHT, log_x), Axis(ys, HEIGHT - BOTTOM, TOP, log_y, zero=True)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           f'font-size="12" role="img"><title>{escape(title)}</title>',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           text(LEFT, 20, title, "start", ' font-size="14" font-weight="bold"')]
    out += grid(across, up, xs, x_label, y_label)
    if limit:
        y = up.place(limit)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#333" '
                   'stroke-dasharray="6 4"/>')
        out.append(text(WIDTH - RIGHT + 6, y + 4, "limit", "start"))
    for number, (name, points) in enumerate(series):
        out += line(name, points, number, across, up, marks)
    return "\n".join([*out, "</svg>", ""])


def line(name, points, number, across, up, marks):
    colour, places = COLOURS[number % len(COLOURS)], [(across.place(x), up.place(y)) for x, y in sorted(points)]
    trail = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    out = [f'<polyline points="{trail}" fill="none" stroke="{colour}" stroke-width="2"/>']
    if marks:
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    y = TOP + 30 + 18 * number
    out.append(f'<line x1="{WIDTH - RIGHT + 8}" x2="{WIDTH - RIGHT + 28}" y1="{y}" y2="{y}" stroke="{colour}" '
               'stroke-width="3"/>')
    return [*out, text(WIDTH - RIGHT + 34, y + 4, name, "start")]
