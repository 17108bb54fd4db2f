"""Counts of training that no word like `step` stands before: `[1,  2000] loss: 2.17`, `(12/800) loss: 0.5`, `loss at iteration 12: 6.5`.

Each form is the whole beginning of a line, as one program or tutorial prints it: a number between brackets alone may be a rank, a box or a day.
"""

import re

from mldebug.jobs.logs.labels import strip_logger
from mldebug.jobs.logs.records import NUMBER, WHOLE

_BEGIN = frozenset("[(=>| te0123456789")  # of `_FORMS`
_FORMS = (  # groups: step, and what else stands there of loss, total and epoch
    re.compile(  # Tacotron 2: `train loss 1200 0.51 grad norm 0.3 1.24s/it`
        rf"train(?:ing)? loss (?P<step>{WHOLE}) (?P<loss>{NUMBER}) grad norm "
    ),
    re.compile(  # `(12/800) loss: 0.5`; `acc: 5.6% (45/800) loss: 0.5` counts samples
        rf"(?:[=>| ]{{0,8}}epoche?:? ?\[?\d{{1,9}}(?:/\d{{1,9}})?\]? ?(?:\[train(?:ing)?\] ?)?|\d{{1,9}}/\d{{1,9}} |(?:\[(?:proc |rank )?\d{{1,9}}\])?\[train(?:ing)?\] ?)?"
        rf"\((?P<step>{WHOLE}) ?/ ?(?P<total>{WHOLE})\)[ :,|-]{{1,4}}(?:(?:train(?:ing)?|average)[ _])?loss\b"
    ),
    re.compile(  # PyTorch's tutorial: `[1,  2000] loss: 2.173`, an epoch and a step
        rf"\[(?P<epoch>\d{{1,9}}), {{0,12}}(?P<step>{WHOLE})\]:? (?:train(?:ing)?[ _])?loss\b"
    ),
    re.compile(  # faceswap: `[12:00:00] [#00107] Loss A: 0.03, Loss B: 0.04`
        rf"(?:\[\d{{1,2}}:\d{{2}}:\d{{2}}\] ?)?\[#(?P<step>{WHOLE})\] {{1,4}}loss\b"
    ),
    re.compile(  # PointNet: `[0: 107/500] train loss: 0.5`
        rf"\[(?P<epoch>\d{{1,9}}): {{1,8}}(?P<step>{WHOLE})/(?P<total>{WHOLE})\] {{1,4}}(?:train(?:ing)?[ _])?loss\b"
    ),
    re.compile(  # UER-py: `|   107/  100000 steps|  1024.00 tokens/s| loss    6.5`
        rf"\| {{1,12}}(?P<step>{WHOLE})/ {{0,12}}(?P<total>{WHOLE}) steps\|"
    ),
    re.compile(  # DCGAN and what was made of it: `[0/25][100/1583] Loss_D: 0.3 Loss_G: 5.1`
        rf"\[(?P<epoch>\d{{1,9}})/\d{{1,9}}\] ?\[ {{0,8}}(?P<step>{WHOLE})/(?P<total>{WHOLE})\](?:\[\d{{1,9}}\])?\s{{1,8}}(?![a-z_ ]{{0,24}}(?:val|test))(?:[a-z_]{{1,12}} ?)?loss[a-z0-9_]{{0,12}}: ?-?\d"
    ),
)
_RARE = (  # with what a line must have, since they are slow to search, or may begin with any letter
    (
        ": iter_speed",
        re.compile(  # Cosmos, behind a head of its logger's own
            rf"(?:\[[^\]]{{1,160}}\] )?(?P<step>{WHOLE}) : iter_speed {NUMBER} seconds per iteration"
        ),
    ),
    (
        "step/epoch [",
        re.compile(  # PixArt: the step of the run and its epoch, then those of the epoch
            rf"(?:[^\[\]]{{1,80}} - )?step/epoch \[(?P<step>{WHOLE})/(?P<epoch>\d{{1,9}})\]\[\d{{1,9}}/\d{{1,9}}\]:"
        ),
    ),
    (
        "/gs]: ",
        re.compile(  # BTS, which names its numbers: epoch, those of the epoch, and the step of the run
            rf"\[epoch\]\[s/s_per_e/gs\]: \[(?P<epoch>\d{{1,9}})\]\[\d{{1,15}}/\d{{1,15}}/(?P<step>{WHOLE})\], "
        ),
    ),
    (
        "minibatch[",
        re.compile(  # CNTK: `Epoch[ 1 of 8]-Minibatch[ 107- 112, 0.19%]: ce = 4.8 * 67`, up to the last of these; an evaluation has no epoch and no loss
            rf"(?:epoch\[ {{0,8}}\d{{1,9}} of \d{{1,9}}\]-minibatch|minibatch(?=[^\]]{{1,60}}\]: loss = ))\[ {{0,8}}-?\d{{1,15}}- {{0,8}}(?P<step>{WHOLE})(?:, [\d.]{{1,9}}%)?\]: "
        ),
    ),
    (
        "objf",
        re.compile(  # PyTorch in Kaldi: `Process 100/3161(3.16%) global average objf: -0.68`
            rf"process (?P<step>{WHOLE})/(?P<total>{WHOLE})\([\d.]{{1,12}}%\) global average objf: "
        ),
    ),
    (
        "mean rms",
        re.compile(  # Tesseract: `At iteration 6914/8100/8140, Mean rms=7.015%`, of which the second counts those trained on
            rf"at iteration \d{{1,15}}/(?P<step>{WHOLE})/\d{{1,15}}, mean rms="
        ),
    ),
    (
        " iter, ",
        re.compile(  # Chainer's bar: `91300 iter, 7 epoch / 20 epochs`
            rf"(?P<step>{WHOLE}) iter, (?P<epoch>\d{{1,9}}) epoch / \d{{1,9}} epochs$"
        ),
    ),
    (
        "on iteration",
        re.compile(  # Kaldi: `On iteration 219, learning rate is 0.0017`
            rf"(?:\[[^\]]{{1,120}}\] )?on iteration (?P<step>{WHOLE}), learning rate is {NUMBER}"
        ),
    ),
    (
        " at ",
        re.compile(  # CornerNet, Deeplearning4j: `training loss at iteration 12: 6.5`, `… - Score at iteration 12 is 6.5`
            rf"(?![^\n]{{0,80}}?\b(?:val(?:id\w{{0,6}})?|eval\w{{0,6}}|test|best|resum\w{{0,4}}|checkpoint|restor\w{{0,4}})\b[^\n]{{0,80}} at )(?:[^\n]{{0,80}}?(?:: | - |, ))?(?:(?:train(?:ing)?|average|total) )?(?:loss|score)(?: \([a-z ]{{1,24}}\))? at (?:iteration|iter|step) (?P<step>{WHOLE})(?: is|:| =) {{1,4}}(?P<loss>{NUMBER})(?:$|,)"
        ),
    ),
    (
        "between steps",
        re.compile(  # Keras' models of TensorFlow: `TimeHistory: 12.3 seconds, 2345.1 examples/second between steps 100 and 200`
            rf"(?:.{{0,80}}\] )?timehistory: {NUMBER} seconds, {NUMBER} examples/second between steps \d{{1,15}} and (?P<step>{WHOLE})$"
        ),
    ),
)


def wordless_count(text: str) -> re.Match[str] | None:
    """The match of a line in lower case, a logger's head may stand before it; its group `step` is the count, `loss`, `total` and
    `epoch` where the form has them. `text`: the line as it stands in the log.
    """
    line = text.lower()
    rare = [form for sign, form in _RARE if sign in line]
    for body in dict.fromkeys((line.strip(), strip_logger(text).lower())):
        for one in (*_FORMS, *rare) if body[:1] in _BEGIN else rare:
            if found := one.match(body):
                return found
    return None
