"""What a person has written behind `raise` or `assert`: whether it is about the rank that raises it. Pure.

Nobody can foresee these words. So a statement in which other ranks, workers or messages occur is
the rank's own only where it says what a value or a setting has to be, and nothing about what others
do or that ranks differ. Of a known library a statement without such words is about the rank itself;
the job's own code has to speak of data, numbers or settings, and not of what did not come: not of
answers that were counted (`31 rewards for 32 prompts`), nor of a stream or a queue that ended. Words
hide in the names of variables: `n_ranks`, `peerStep`.
"""

import re

from mldebug.diagnosis.exits.words.error_types import spaced

# Who else there is in a job, in words that a statement about data has, too
_OTHERS = re.compile(
    r"\b(?:ranks?|peers?|workers?|actors?|replicas?|hosts?|nodes?|process(?:es)?|leaders?|followers?|coordinator|main node|primary|masters?|members?|participants?|siblings?"
    r"|trainers?|learners?|servers?|daemons?|raylet|clusters?|stages? \d|quorum|group|barrier|heartbeats?|store|messages?|repl(?:y|ies)|responses?|answers?|votes?|acks?|handshake"
    r"|predecessors?|successors?|upstream|downstream|senders?|receivers?|producers?|consumers?|feeders?"
    r"|TP|DP|PP|EP|CP|SP|FSDP|another|others?|every(?:one|body)|some(?:one|body)|remote|connect(?:ed|ion|ions)?|network|sockets?|timeout|collectives?|nccl|gloo|mpi)\b",
    re.IGNORECASE,
)
# What somebody else does or does not do, and that values are not alike
_OF_OTHERS = re.compile(
    r"\b(?:differ(?:s|ed|ent|ing|ence)?|the same|mismatch\w{0,3}|disagree\w{0,2}|diverge[sd]?|de-?sync\w{0,12}|out of sync|(?:not|un)[- ]?synchroni[sz]ed|inconsisten\w{1,3}|identical|equal (?:for|on|in) all"
    r"|mixed|did(?:n't| not)|does(?:n't| not) (?:answer|respond|reply|come)|has(?:n't| not)|have not|never|fail(?:ed|s|ure|ures)?|died|dead|alive|crash\w{0,3}|lost|gone|missing|left|exit(?:ed|s)?|killed|stopped"
    r"|shut ?down|unreachable|unavailable|un?healthy|respon[ds]\w{0,4}|answer(?:s|ed)?|repl(?:y|ied|ies)|voted|receiv(?:ed?|es|ing)|joined|arriv\w{1,4}|(?:dis)?connected|closed|abort\w{0,3}|hang(?:s|ing)?|hung|stuck|stall\w{0,3}"
    r"|finish(?:ed)?|complet(?:e|ed)|publish\w{0,4}|late|slow|timed out|times out|wait(?:s|ed|ing)?|write|wrote|see logs|check the logs?)\b"
    r"|\bconnect(?:ing|ion)?(?: to)? \S{1,80}:\d{2,5}\b"
    r"|\b(?:some|any|one of the|at least one) (?:\w{1,20} )?(?:ranks?|workers?|process(?:es)?|hosts?|nodes?|replicas?|peers?|actors?)\b"
    r"|\b(?:across|among|between)\b.{0,24}\b(?:ranks|workers|processes|hosts|nodes|replicas|TP|DP|PP|EP|CP)\b"
    r"|\b\d{1,7}(?: ?(?:of|/) ?\d{1,7})? (?:\w{1,20} )?(?:ranks?|workers?|replicas?|nodes?|hosts?|peers?|processes|members?|participants?)\b",
    re.IGNORECASE,
)
# What a value or a setting has to be, or is
_OF_A_VALUE = re.compile(
    r"\b(?:must|should|has to|have to|needs? to|ought to) (?:not )?(?:be|have|contain|specify|divide|start|end|use)\b|\bexpect(?:s|ed|ing)?\b|\bgot\b|\bbut (?:found|is|was)\b|\bgiven\b"
    r"|\b(?:has|have) \d|\bunsupported|\bnot supported|\bdoes not support|\binvalid|\bunknown|\bunrecogni[sz]ed|\bcannot (?:import|find|parse|convert|be)\b|\bhas no attribute|\bnot in\b|\bnot found in\b"
    r"|\bis not (?:an?|known|allowed)\b|\b(?:more|less|greater|larger|smaller) than\b|\btensors?\b|\bdimensions?\b|\bdivisible|\bout of (?:range|bounds)|\bat (?:least|most)\b|\brequires?\b|\bmalformed|\bcorrupt|\bchecksum|\bshapes?\b|\bdtype|\bnan\b|\binf\b|\bnon-?finite|\boverflow|\bduplicate"
    r"|\bunexpected (?:keyword|argument)|\barguments?\b|\bspecif(?:y|ied)\b|\bconfig(?:uration)?\b|\bpositive\b|\bnegative\b",
    re.IGNORECASE,
)
# Data of a rank's own, whoever names them
DATA = r"infinite|diverged|underflow|loss|gradients?|logits|vocab\w{0,8}|options?|tokeni[sz]er|datasets?|samples?|images?|weights"
# The same, and what may be data in a statement
_OF_DATA = re.compile(
    rf"\b(?:{DATA}|finite|weight|grads?|batch(?:es)?|tokens?|data|labels?|parameters?|layers?|heads?"
    r"|shards?|records?|rows?|lines?|columns?|files?|paths?|folders?|director(?:y|ies)|keys?|checkpoints?|magic|headers?|bytes?|encod\w{1,4}|array|index|indices|values?|size|length|sequence|prompt|template|models?|modules?|shapes?|characters?|documents?|strings?|json|yaml|schema|embeddings?)\b"
    r"|/…",
    re.IGNORECASE,
)
# Data of which no rank has another's, in names of variables
_OF_ITS_INPUT = re.compile(
    r"\b(?:shapes?|dtypes?|ndim|batch(?:es)?|headers?|magic|tokens?|tokeni[sz]er|vocab\w{0,8}|images?|labels?|samples?|datasets?|sequence|seq|logits)\b",
    re.IGNORECASE,
)
# What has not come from wherever it was to come from
_NOT_COME = re.compile(
    r"\b(?:came|come|comes|arriv\w{1,3}|answer\w{0,3}|nobody|no one|nothing|quit|behind|ahead|neighbou?rs?|back|in time|too late|gone|alive|dead|died|(?<!bytes )left(?! after)|lost|still|yet|broken|raised|flag|broadcast|gather\w{0,3}"
    r"|recv|transfer\w{0,4}|all[ -]?to[ -]?all|all[ -]?(?:reduc|gather)\w{1,4}|reduc\w{1,4}|rings?|gpus?|cards?|incomplete|contribut\w{1,4}|out of sync|in sync|de-?sync\w{0,12}|(?:un|not )synchroni[sz]ed"
    r"|not (?:been )?(?:received|delivered|sent|written|saved|built|created|published|ready|there)|received?\b.{0,40}\bfrom|no \w{1,30} from|(?:with)?in \d[\d.]{0,12} ?(?:s|sec\w{0,4}|min\w{0,4}|ms)"
    r"|global (?:loss|gradients?|grads?|mean|norm|sum|step)|(?:weights?|parameters?|params?|gradients?|grads?|state) (?:hash|digest|fingerprint|checksum)\w{0,3}"
    # of whoever trains them for this rank, which generates
    r"|(?:weights?|parameters?|params?|policy) (?:sync\w{0,12}|updates?|versions?|push\w{0,3}|(?:are |is )?(?:stale|outdated))|(?:stale|outdated) (?:weights?|parameters?|params?|policy)"
    r"|(?:samples?|episodes?|experiences?) (?:were )?collected)\b",
    re.IGNORECASE,
)
# What somebody had to make for this rank (a reward model, a rollout engine), counted: some of it has not come
_ANSWERS = r"(?:rewards?|scores|completions|generations|rollouts|responses|trajectories|episodes|experiences|advantages|log_?probs|results|outputs)"
_COUNTED = re.compile(
    rf"(?=[\s\S]*\d\b[\s\S]*\D\d)[\s\S]*?(?:\b\d{{1,9}} (?:\w{{1,20}} ){{0,2}}?{_ANSWERS}\b|\b{_ANSWERS}\b\)?(?: (?:have|has|are|is|count|number)\b| ?[=:(]) ?\d{{1,9}}\b(?! (?:tokens?|characters?|columns?|dim\w*|bytes)\b))",
    re.IGNORECASE,
)
# A count or a version of what another part of the job makes: whether too little was made, or too much asked for, one side does not know
_MADE = re.compile(
    r"\b(?:rollouts?|samplers?|(?:inference|generation|rollout) engines?|reward models?|verifiers?|replay buffers?|(?:vec(?:tor)? )?envs?|actors?|learners?)\b",
    re.IGNORECASE,
)
# Numbers that count nothing that was made: which one it is, a shape, an index, a size, a setting
_NO_COUNT = re.compile(
    r"\b(?:rollout|sampler|engine|model|verifier|env(?:ironment)?|actor|learner|worker)s? #?\d{1,9}\b(?! (?:of|samples|rollouts))|[(\[][\d, x]{1,60}[)\]]"
    r"|\b(?:size|length|index|id|dim\w{0,8}|layer|head|seed|lr|temperature|width|height|action|port|divisible by)s?\b[ =:]{0,3}\d{1,20}"
    r"|\b\d{1,9} (?:layers?|heads?|dim\w{0,8}|channels?|columns?|features?)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d{1,20}")
_AT = r"(?:step|iteration|version|epoch|round|generation|revision)s?"
_VERSIONED = re.compile(
    rf"\b(?:weights?|param(?:eter)?s|policy|model|state|adapters?|ema)\b(?: \w{{1,12}}){{0,3}} {_AT}\b"
    rf"|\bexpected (?:\w{{1,12}} ){{0,3}}{_AT}\b|(?<!at )(?<!in )(?<!on )(?<!after )(?<!format )(?<!schema )\b{_AT}\b[ #:=]{{0,3}}\d{{1,12}},? (?:(?:is |was )?expected|instead|but (?:have|has|got|is|at)|!=|vs\b)|\b{_AT} (?:counter|number)s?\b",
    re.IGNORECASE,
)
# What flows from whoever fills it, and flows no more; not a file that ends
_DRY = re.compile(
    r"\b(?:streams?|iterators?|iterables?|generators?|feeds?|queues?|loaders?|prefetch\w{0,4}|pipelines?|channels?|buffers?)\b.{0,30}\b(?:end(?:s|ed)|exhausted|stop(?:s|ped)|closed|finished|drained|ran (?:dry|out|empty))\b"
    r"|\b(?:end of|ran out of|out of) (?:the )?(?:\w{1,20} )?(?:stream|queue|feed|batches)\b",
    re.IGNORECASE,
)
_FILE = re.compile(r"/…|\b[\w-]{1,80}\.(?:tar|parquet|jsonl?|csv|txt|bin|npy|npz|arrow|idx|zst|gz|h5|mds|tfrecords?|record|pt)\b")  # fmt: skip
# A failure of which the words themselves say that it was somewhere else
_ELSEWHERE = re.compile(
    r"\b(?:on|in|at|from|by) (?:an?(?:other)?|the|some)? ?(?:different|another|other|remote) (?:\w{1,20} )?(?:rank|worker|process|node|host|replica|peer|actor)s?\b"
    r"|\b(?:failed|failure|error|exception|crashed|crash|out of memory)\b.{0,16} (?:on|in|at) (?:local |global |remote )?(?:ranks?|worker|process|host) ?[\[(#'\"]?\d"
    r"|\bon some (?:rank|worker|process|node)\b|\b(?:somebody|someone) (?:has|had|got|hit|raised)\b"
    r"|\branks? ?\[?\d[\d, ]{0,60}\]? (?:has |have )?(?:failed|died|crashed|exited|raised)\b",
    re.IGNORECASE,
)
# What a person wrote a wait for, which was in vain
_IN_VAIN_FOR = re.compile(
    r"\b(?:tim(?:ed|e)[- ]?out|gave up|giving up)\b.{0,60}?\b(?:wait\w{0,4}) (?:\d\S{0,12} ?\w{0,8} )?(?:for|on|at)\b(?P<after>.{0,90})"
    r"|\bwait(?:ed|ing)? (?:\d\S{0,12} ?\w{0,8} )?(?:for|on|at)\b(?P<before>.{0,90}?)\btim(?:ed|e)[- ]?out\b"
    r"|\bdid(?:n't| not) appear after waiting\b(?P<file>.{0,90})",
    re.IGNORECASE,
)
# What a rank has of its own, or what no rank makes: a wait for it says nothing about others
_ITS_OWN = re.compile(
    r"\b(?:data(?:loader)?|loaders?|batch(?:es)?|samples?|prefetch\w{0,4}|workers?|threads?|sub-?process(?:es)?|child\w{0,3}|pid|gpus?|devices?|kernels?|streams?|events?|cuda|queue|(?:file ?)?locks?|mutex"
    r"|semaphore|disk|mount|nfs|memory|upload\w{0,3}|download\w{0,3}|s3|https?|url|api|database|db|connection|ports?|sockets?|quota|ssh|job|slurm|license|shutdown|cleanup|flush|writer|async \w{1,20} save)\b",
    re.IGNORECASE,
)
_SOMEBODY = (
    r"(?:(?:peers?|ranks?|replicas?|trainers?|learners?|stages?|gpu|card|host|node)[ #-]?\[?\d{1,5}\]?|(?:the |a |its |our )?(?:leader|master|coordinator|neighbou?rs?|predecessor|successor|sender|feeder|saver|peer|upstream|downstream)"
    r"|nobody|somebody|someone|no (?:worker|rank|peer)|all \w{0,20} ?\w{0,8} workers|other ranks|the others)"
)
# Who serves the job, or leads it
_SERVING = r"(?:the |its )?(?:\w{1,20} )?(?:leader|master|coordinator|head|main|rank \d{1,7}|(?:\w{1,20} )?server|tcp://\S{1,80}|rollout-\d{1,5})"
# What somebody else is, or did not do
_IS_GONE = re.compile(
    rf"\b{_SOMEBODY}(?: \w{{1,12}})? ?(?:(?:is|are|was|were|has|have|had) )?(?:all |been )?(?:gone|dead|lost|not alive|alive$|not reachable|unreachable|unresponsive|disconnected|quit|left\b|died|shut ?down|behind by|never came"
    rf"|did(?:n't| not) (?:come|answer|reply|create|write|publish|finish|join)|has not (?:published|answered|joined|written)|answered (?:the call|with an error))"
    rf"|\b(?:lost|no|missing) (?:heartbeats?|contact|answers?|results?|repl(?:y|ies)|gradients?|batch|acks?) (?:from|of|with) (?:{_SOMEBODY}|ranks?|workers? \d)|\bnothing (?:was )?received from\b"
    # whom it could not reach, who did not come up, and that too few did
    rf"|\b(?:could(?:n't| not)|can(?:'t|not)|unable to|failed to) (?:reach|contact) {_SERVING}|\b{_SERVING}\b.{{0,40}}\b(?:can(?:'t|not)|could not) be reached\b"
    rf"|\btim(?:ed|e)[- ]?out (?:while |when )?(?:trying to )?connect(?:ing)? to {_SERVING}|\b(?:{_SERVING}|workers)\b.{{0,60}}\bdid(?:n't| not) (?:come up|register|accept connections|become healthy)\b"
    rf"|\b(?:gave up|giving up|tim(?:ed|e)[- ]?out)\b.{{0,24}}\bwait\w{{0,4}} (?:for|on) (?:a|an|the|its)? ?(?:peer|neighbou?r|leader|master|coordinator|other ranks?)\b|\bwaited for rank \d"
    rf"|\bnot all (?:ranks|workers|peers|processes|nodes|hosts|replicas) (?:have |were |are )?(?:reached|finished|joined|arrived|came|reported|responded|answered|acknowledged|committed|ready|alive|up)\b|n[o']t (?:\w{{1,12}} )?enough (?:peers|ranks|workers|replicas|nodes|hosts)\b|\b(?:less|fewer) than \d{{1,7}} (?:\w{{1,20}} )?(?:responded|answered|replied)\b"
    rf"|\bpeer (?:\w{{1,20}} )?(?:rank|worker|process|node|host) failed\b"
    r"|\bnot connected to the (?:leader|master|coordinator)|\bno token came back\b|\bonly \d{1,7} of \d{1,7} (?:replicas|peers|ranks|trainers)\b",
    re.IGNORECASE,
)
# Two values that a library has compared: whether one of them came from another rank, it does not know
_COMPARED = re.compile(r"\bare not (?:close|(?:almost )?equal)\b|\bnot (?:almost )?equal to tol", re.IGNORECASE)  # fmt: skip
_QUOTED = re.compile(r"'[^'\s]{0,200}'|\"[^\"\s]{0,200}\"")  # a key
_TYPE = re.compile(r"\b\w{1,80}(?:Error|Exception)\b")  # a KeyError tells of no data
_WORD = re.compile(r"[\w.-]{1,200}")
_PLACE = re.compile(r"[\w.-]{0,80}(?:/[\w.@=+-]{1,200}){1,40}/?")


def is_of_itself(text: str, *, foreseen: bool = True) -> bool:
    """Whether the text of an exception (without its type) is about the rank that raised it, and not about others.

    `foreseen`: a known library raised it, and not the job's own code.
    """
    if _COMPARED.search(text):
        return False
    text = _PLACE.sub("/…", text.strip())
    if _QUOTED.fullmatch(text) or (foreseen and _WORD.fullmatch(text)):
        return True
    if not foreseen:
        text = f"{text}\n{spaced(_TYPE.sub('', text))}"  # not that alone: it makes two words of NaN
        of_a_file = _FILE.search(text) is not None
        if _COUNTED.match(text) or (not of_a_file and _is_of_a_maker(text)):
            return False
    if _OTHERS.search(text):
        return _OF_A_VALUE.search(text) is not None and _OF_OTHERS.search(text) is None
    if foreseen:
        return True
    of_data = _OF_A_VALUE.search(text) or _OF_DATA.search(text)
    return of_data is not None and _NOT_COME.search(text) is None


def _is_of_a_maker(text: str) -> bool:
    """Whether it counts what another part of the job has made, compares two versions of it, or says that no more of it comes."""
    numbers = len(_NUMBER.findall(_NO_COUNT.sub(" ", text)))
    made, compared = _MADE.search(text), _VERSIONED.search(text)
    return bool((numbers and made) or (numbers > 1 and compared) or _DRY.search(text))


def checks_itself(source: str, *, foreseen: bool) -> bool:
    """Whether the line of source (as in a traceback) that raised an error without a message checks something of its own rank.

    `foreseen`: as in `is_of_itself`.
    """
    if foreseen:
        return _OTHERS.search(source) is None
    words = f"{source}\n{spaced(source)}"
    of_others = _OTHERS.search(words) or _NOT_COME.search(words)
    return of_others is None and _OF_ITS_INPUT.search(words) is not None


def waited_in_vain(words: str) -> bool:
    """Whether a statement says that somebody else is gone, or did not make in time what the rank has waited for: it is that one's victim.

    Not where it waited for something that a rank has of its own, or that no rank makes: a worker, a lock, a download.
    """
    if _IS_GONE.search(words):
        return True
    found = _IN_VAIN_FOR.search(words)
    if found is None:
        return False
    awaited = found["after"] or found["before"] or found["file"] or ""
    return _ITS_OWN.search(_PLACE.sub("/…", awaited)) is None


def is_elsewhere(words: str) -> bool:
    """Whether an error says that another rank failed, named or not."""
    return _ELSEWHERE.search(words) is not None
