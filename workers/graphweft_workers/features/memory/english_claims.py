"""The English words of claims: see ``claims``. Pure."""

from __future__ import annotations

import re
from typing import Final

from graphweft_workers.features.memory.claim_forms import ClaimForm, Language
from graphweft_workers.features.predicates import SERVICES
from graphweft_workers.retrieval.topics import KIN

SIZE: Final = r"(?:small|little|tiny|big|large|huge|old|new|young|nice|cute|lovely|beautiful)"
_QUALITY: Final = rf"(?:{SIZE}|red|green|blue|yellow|black|white|brown|gr[ae]y|orange|pink|purple|silver)"
_PET: Final = r"(?:dog|cat|hamster|rabbit|parrot|horse|bird|goldfish|puppy|kitten|turtle)"
_LEAD: Final = (
    r"(?:(?:hi|hello|hey|well|yes|no|oh|ok|okay|so|and|but|actually|now|today|yesterday|recently|finally|currently|"
    r"anyway|sorry|please|nowadays|these days|by the way|btw|fyi|for the record|just so you know|"
    r"please (?:note|remember)(?: that)?|remember(?: that)?|note(?: that)?|update|correction|news|good news|"
    r"bad news|big news|guess what|from now on|as of (?:last |this )?\w+|since (?:last )?\w+|"
    r"last (?:week|month|year|spring|summer|autumn|winter|\w+day)|a (?:week|month) ago|"
    r"(?:i|we)(?: have|'ve)? (?:just )?moved(?: house| home)?(?=[,:;]))\b[,:;!.\s-]*){0,5}"
)
_WHEN: Final = (
    r"(?:(?:19|20)\d\d|yesterday|today|night|weekend|week|month|year|spring|summer|autumn|fall|winter|january|february|march|april|"
    r"may|june|july|august|september|october|november|december|(?:mon|tues|wednes|thurs|fri|satur|sun)day)"
)
_TAIL: Final = (
    r"(?:,? (?:just so you know|just saying|by the way|btw|fyi|you know|as you know|as i (?:said|mentioned|told you)|"
    r"for the record|in case you (?:wonder|need it)|though|after all|"
    r"now|currently|nowadays|today|yesterday|recently|again|instead|these days|from now on|please|actually|"
    rf"officially|(?:since|as of) (?:last )?{_WHEN}|last {_WHEN}|"
    r"(?:a|two|three|some|a few|a couple of) (?:days?|weeks?|months?) ago))$"
)
_DETAIL: Final = (
    r"\b(?:with|from|at|in|on|when|whenever|that|as|who|which|where|because|since|so|than|for|by|after|before|during|"
    r"while|without|but|only|except|unless|though|although|too|more|most|much|not|just|every|sometimes|often|here|"
    r"there|today|yesterday|tonight|weekends?|am|is|are|was|were|i|you|he|she|they|we)\b"
)
_OFTEN: Final = r"(?: (?:really|still|now|just|absolutely|currently|recently|finally|actually|already|officially)){0,3}"
_I: Final = r"(?:i|we)"
_I_AM: Final = r"(?:i am|i'm|we are|we're)"
_I_HAVE: Final = r"(?:i(?: have|'ve)?|we(?: have|'ve)?)"
_CAPITAL: Final = r"(?-i:[^\W\d_a-z\u00df-\u00f6\u00f8-\u00ff])"
"""A letter that may begin a name: a capital one, or of a script without. ``_is_name`` looks at the others."""
_THEY: Final = rf"(?P<who>my {KIN}(?: {_CAPITAL}[\w'-]*)?)"
_WHAT: Final = r" (?P<what>(?:(?:Dr|Mrs?|Ms|Prof|St)\. )?[^,;:!?()\n]+)"
_NAME: Final = (
    rf" (?P<what>(?:the )?(?:(?:Dr|Mrs?|Ms|Prof|St)\.? )?{_CAPITAL}[\w&'-]*"
    rf"(?: (?:(?:de|da|do|la|le|am|der|upon|of|del|di) )?{_CAPITAL}[\w&'-]*){{0,3}})"
)
_SEASON: Final = (
    r"(?: in (?:early |late )?(?:spring|summer|autumn|fall|winter|january|february|march|april|may|june|july|august|"
    r"september|october|november|december)| on (?:mon|tues|wednes|thurs|fri|satur|sun)day)?"
)
"""Behind what somebody has done: it says when."""
_KIND_OF_FIRM: Final = (
    r"(?:hospital|clinic|school|university|college|library|bank|bakery|museum|hotel|pharmacy|restaurant|airport|"
    r"council|police|court|theatre|theater|cafe|factory|brewery|zoo)"
)
_FIRM: Final = rf"{_NAME[:-1]}(?: {_KIND_OF_FIRM})?)"
_HOW_OFTEN: Final = (
    r"(?: (?:daily|(?:every|each) (?:single )?(?:day|morning|evening|night|week|weekend|(?:mon|tues|wednes|thurs|fri|"
    r"satur|sun)day)|on (?:(?:mon|tues|wednes|thurs|fri|satur|sun|week)days|weekends)))?"
    r"(?:, (?:\w+ )?(?:cups?|glass(?:es)?|times|hours?|packs?) (?:a|every|per) (?:day|week))?"
)
_MUCH: Final = r"(?: (?:(?:far |way )?too much|a lot of|lots of|plenty of))?"
_PARTNER: Final = r"(?:girlfriend|boyfriend|wife|husband|partner|fianc[e\u00e9]e?|spouse)"
_ONE_SERVICE: Final = f"(?:{'|'.join(SERVICES)})"
_DO: Final = r"(?:drink|eat|smoke|play|use|speak|watch|take|ride|read|wear|collect|practi[sc]e|teach)"
_DOING: Final = (
    r"(?:drinking|eating|smoking|playing|using|speaking|watching|taking|riding|reading|wearing|collecting|"
    r"practi[sc]ing|teaching)"
)
_BASES: Final = dict(zip(_DOING[3:-1].replace("practi[sc]ing", "practising").split("|"),
                         _DO[3:-1].replace("practi[sc]e", "practise").split("|"), strict=True)) | {
    "practicing": "practise", "practice": "practise",
}  # fmt: skip
_DATE: Final = (
    r"(?P<what>(?:\d[\d./-]*(?:st|nd|rd|th)?(?: of)?(?: [a-z]+)?(?: \d+)?|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|"
    r"nov|dec)[a-z]* (?:the )?\d+(?:st|nd|rd|th)?(?: \d+)?))"
)
_BE_BACK: Final = r"(?:back |over |down |up |out |house )?"


_COMPANY: Final = (
    r"(?: (?:together )?with (?:my|our)(?: (?!(?:in|at|on|from|for|until|till|during|when|while|every|if|because|since)"
    r"\b)[\w'&-]+){1,10})?"
)
"""Behind a home: it says with whom, and no less where."""


def _pattern(words: str, predicate: str, **more: bool) -> ClaimForm:
    return ClaimForm(words=re.compile(words, re.IGNORECASE), predicate=predicate, **more)


def _ended(words: str, predicate: str, **more: bool) -> ClaimForm:
    return _pattern(words, predicate, holds=False, **more)


_ANYMORE: Final = r" (?P<what>[^,;:!?()\n]+?) (?:anymore|any more|any longer)"
_MAYBE_ANYMORE: Final = r" (?P<what>[^,;:!?()\n]+?)(?: (?:anymore|any more|any longer))?"
_AT_FIRM: Final = (
    rf"(?: (?:at|for|in) (?:(?:the )?(?:St\. )?{_CAPITAL}[\w&'-]*(?: {_CAPITAL}[\w&'-]*){{0,3}}(?: {_KIND_OF_FIRM})?"
    rf"|(?:an?|the) (?:[a-z]+ )?{_KIND_OF_FIRM}))?"
)
_PROFESSION: Final = (
    r"(?:teacher|nurse|midwife|paramedic|doctor|surgeon|dentist|pharmacist|vet|veterinarian|physiotherapist|"
    r"psychologist|psychiatrist|therapist|carpenter|plumber|electrician|mechanic|welder|bricklayer|roofer|engineer|"
    r"developer|programmer|administrator|architect|designer|analyst|consultant|accountant|lawyer|solicitor|"
    r"librarian|journalist|translator|interpreter|scientist|researcher|physicist|chemist|"
    r"biologist|professor|lecturer|principal|headteacher|chef|butcher|barista|waiter|waitress|bartender|"
    r"hairdresser|barber|farmer|firefighter|police officer|policeman|policewoman|soldier|"
    r"postman|pilot|flight attendant|(?:bus|taxi|truck|lorry|train|tram) driver|social worker|secretary|"
    r"receptionist|cashier|electrical engineer|(?:project|product|office|shop|store|hotel) manager|estate agent)"
)
_NOT_BY_TRADE: Final = (
    r"(?!(?:retired|former|trained|trainee|aspiring|amateur|hobby|part-time|weekend|volunteer|would-be|ex|past|"
    r"future|terrible|bad|lousy|good|great|decent|better|worse|big|huge)\b)"
)
_GREETED: Final = f"(?:{'|'.join(f'(?<={each})' for each in ('hi ', 'hi, ', 'hey ', 'hey, ', 'hello ', 'hello, '))})"
"""Behind a greeting "I'm Robert" is a name."""
_ENGLISH: Final = (
    # Where somebody lives
    _ended(rf"{_I}{_OFTEN} no longer live (?:in|at){_NAME}", "lives in", is_name=True),
    _ended(rf"{_I}{_OFTEN} (?:don't|do not) live (?:in|at){_ANYMORE}", "lives in", is_name=True),
    _ended(rf"{_I_HAVE}{_OFTEN} moved (?:away from|out of){_NAME}", "lives in", is_name=True),
    _pattern(rf"{_I}{_OFTEN} (?:live|reside) (?:in|at|on){_NAME}{_COMPANY}", "lives in", is_name=True),
    _pattern(
        rf"(?:{_I}{_OFTEN} live|{_I_AM}{_OFTEN} living) (?:in|on|at) (?:\d+\w? )?(?:{_CAPITAL}[\w'-]* ){{1,3}}"
        rf"(?:Street|St\.?|Road|Rd\.?|Avenue|Lane|Square|Drive|Place|Close),? in{_NAME}", "lives in", is_name=True,
    ),
    _pattern(
        rf"(?:{_I_AM}|{_I_HAVE} been){_OFTEN} (?:living|based|settled) (?:in|at){_NAME}{_COMPANY}",
        "lives in", is_name=True,
    ),
    _pattern(
        rf"{_I_HAVE}{_OFTEN} moved {_BE_BACK}(?:from {_CAPITAL}[\w -]*? )?to{_NAME}{_COMPANY}{_SEASON}",
        "lives in", is_name=True, is_place=True,
    ),
    _pattern(
        rf"{_I_HAVE}{_OFTEN} (?:relocated|moved house) (?:from {_CAPITAL}[\w -]*? )?to{_NAME}{_SEASON}",
        "lives in", is_name=True,
    ),
    _pattern(rf"{_I_HAVE}{_OFTEN} settled (?:down )?in{_NAME}", "lives in", is_name=True),
    _pattern(
        rf"{_I_AM}{_OFTEN} renting (?:a|an) (?:new )?(?:flat|apartment|house|place|room) in{_NAME}",
        "lives in", is_name=True,
    ),
    _pattern(
        rf"(?:my|our){_OFTEN} (?:(?:new|current) )?(?:home|flat|apartment|house|place|address|home address) "
        rf"is{_OFTEN}(?: (?:in|at))?{_NAME}", "lives in", is_name=True,
    ),
    _pattern(rf"{_I}{_OFTEN} call{_NAME} (?:my )?home", "lives in", is_name=True),
    _pattern(rf"{_NAME[1:]} (?:is|has become){_OFTEN} (?:my|our) (?:new )?home", "lives in", is_name=True),
    _pattern(rf"{_THEY}{_OFTEN} lives in{_NAME}", "lives in", is_name=True),
    _pattern(rf"{_THEY}(?: has|'s)?{_OFTEN} moved {_BE_BACK}to{_NAME}", "lives in", is_name=True, is_place=True),
    # Work
    _ended(rf"{_I}{_OFTEN} no longer work (?:at|for|with){_NAME}", "works for", is_name=True),
    _ended(rf"{_I}{_OFTEN} (?:don't|do not) work (?:at|for|with){_ANYMORE}", "works for", is_name=True),
    _ended(rf"{_I_HAVE}{_OFTEN} (?:quit|left|lost) my job (?:at|with){_NAME}{_SEASON}", "works for", is_name=True),
    _ended(rf"{_I_HAVE}{_OFTEN} (?:left|quit){_NAME}{_SEASON}", "works for", is_name=True),
    _ended(
        rf"{_I} (?:was|got|have been){_OFTEN} (?:fired|laid off|let go) (?:from|by){_NAME}", "works for", is_name=True
    ),
    _ended(rf"{_I} (?:was|got|have been){_OFTEN} (?:fired|laid off|let go)(?P<any>)", "works for"),
    _ended(rf"{_I_HAVE}{_OFTEN} (?:quit|left|lost) my job(?P<any>)", "works for"),
    _ended(rf"(?:{_I_HAVE}{_OFTEN} retired|{_I_AM}{_OFTEN} (?:unemployed|retired))(?P<any>)", "works for"),
    _pattern(
        rf"(?:{_I}{_OFTEN} work|{_I_AM}{_OFTEN} working) as an? (?P<what>[^,;:!?()\n]+?){_AT_FIRM}", "works as"
    ),
    _pattern(
        rf"{_I_AM}{_OFTEN} an? {_NOT_BY_TRADE}(?P<what>(?:{_NOT_BY_TRADE}[a-z]+ ){{0,2}}{_PROFESSION}){_AT_FIRM}",
        "works as",
    ),
    _pattern(rf"my{_OFTEN} (?:(?:new|current) )?(?:job title|profession|occupation) is{_OFTEN}{_WHAT}", "works as"),
    _pattern(rf"{_I} (?:was|got|have been){_OFTEN} promoted to{_WHAT}", "works as"),
    _pattern(rf"{_I}{_OFTEN} work (?:at|for){_FIRM}", "works for", is_name=True),
    _pattern(rf"{_I_AM}{_OFTEN} (?:working (?:at|for)|employed (?:at|by)){_FIRM}", "works for", is_name=True),
    _pattern(rf"{_I_HAVE}{_OFTEN} joined{_FIRM} as (?:an?|the|their) [a-z ]+", "works for", is_name=True),
    _pattern(
        rf"{_I_HAVE}{_OFTEN} (?:started (?:working|(?:a|my) new job)|got (?:a (?:new )?job|hired)|took a (?:new "
        rf")?job) (?:at|for|by|with){_NAME}", "works for", is_name=True,
    ),
    _pattern(
        rf"{_I_HAVE}{_OFTEN} (?:changed|switched) (?:jobs|employers?|companies) (?:and (?:went|moved) )?to{_NAME}",
        "works for", is_name=True,
    ),
    _pattern(rf"my{_OFTEN} (?:(?:new|current) )?employer is{_OFTEN}{_NAME}", "works for", is_name=True),
    _pattern(rf"my{_OFTEN} (?:(?:new|current) )?job is{_OFTEN} (?:at|with){_NAME}", "works for", is_name=True),
    _pattern(rf"{_THEY}{_OFTEN} works (?:at|for){_NAME}", "works for", is_name=True),
    _pattern(rf"{_THEY}{_OFTEN} works as (?:an? )?(?P<what>[^,;:!?()\n]+)", "works as"),
    _pattern(
        rf"(?:{_I_AM}{_OFTEN} studying|{_I}{_OFTEN} study) (?!(?:every|hard|a lot|all|late|alone|together|to|abroad|"
        rf"now|until|best|about)\b)(?P<what>[^,;:!?()\n]+?){_AT_FIRM}", "studies",
    ),
    _pattern(rf"(?:my major is|{_I_HAVE}{_OFTEN} (?:switched|changed) my major to){_OFTEN}{_WHAT}", "studies"),
    # Names
    _ended(rf"(?:don't|do not|stop) call(?:ing)? me{_NAME}(?: anymore| any more)?", "is called", is_name=True),
    _pattern(rf"(?:my{_OFTEN} (?:new )?name is{_OFTEN}|my name's){_NAME}", "is called", is_name=True),
    _pattern(rf"(?:{_I_AM}{_OFTEN} called|call me){_NAME}", "is called", is_name=True),
    _pattern(rf"{_GREETED}(?:i am|i'm)(?! OK\b){_NAME}", "is called", is_name=True),
    _pattern(rf"{_I_HAVE}{_OFTEN} changed my name to{_NAME}", "is called", is_name=True),
    # Partners
    _ended(
        rf"{_I_HAVE}{_OFTEN} (?:broke(?:n)? up|split up|separated) (?:with|from){_NAME}",
        "has partner", is_name=True,
    ),
    _ended(
        rf"(?P<what>{_CAPITAL}[\w'-]*) and i(?: have|'ve)?{_OFTEN} (?:broke(?:n)? up|split up|separated|"
        rf"divorced|got divorced|are (?:divorced|separated|no longer together|not together any\s*more))",
        "has partner", is_name=True,
    ),
    _ended(
        rf"(?P<what>{_CAPITAL}[\w'-]*) (?:has )?(?:left|dumped|(?:broke|broken|split) up with) me", "has partner",
        is_name=True,
    ),
    _ended(
        rf"my {_PARTNER} (?:and i (?:have )?(?:broke(?:n)? up|split up|separated|divorced|got divorced)|"
        rf"(?:has )?(?:left|dumped|(?:broke|broken|split) up with) me)(?P<any>)", "has partner",
    ),
    _ended(
        rf"(?:{_I_AM}{_OFTEN} (?:single|divorced|no longer married|not married any\s*more)|{_I_HAVE}{_OFTEN} "
        rf"(?:got|gotten) divorced|we (?:broke up|split up))(?P<any>)", "has partner",
    ),
    _pattern(
        rf"my{_OFTEN} (?:(?:new|current) )?{_PARTNER}(?: is|'s){_OFTEN} (?:(?:called|named) )?{_NAME[1:]}",
        "has partner", is_name=True,
    ),
    _pattern(rf"my{_OFTEN} (?:new )?{_PARTNER}'s name is{_NAME}", "has partner", is_name=True),
    _pattern(
        rf"{_I_AM}{_OFTEN} (?:dating|engaged to|married to|together with|in a relationship with){_NAME}",
        "has partner", is_name=True,
    ),
    _pattern(
        rf"{_I_HAVE}{_OFTEN} (?:married|got (?:married|engaged) to|started (?:dating|seeing)){_NAME}",
        "has partner", is_name=True,
    ),
    _pattern(
        rf"(?P<what>{_CAPITAL}[\w'-]*) and i (?:are|got){_OFTEN} (?:married|engaged|together|dating|a couple)",
        "has partner", is_name=True,
    ),
    _pattern(rf"(?P<what>{_CAPITAL}[\w'-]*) is{_OFTEN} my (?:new )?{_PARTNER}", "has partner", is_name=True),
    # What somebody has one of
    _pattern(
        rf"my{_OFTEN} (?:(?:new|current) )?(?P<of>{_ONE_SERVICE}) is{_OFTEN} (?:(?:called|named) )?{_NAME[1:]}",
        "has", is_name=True,
    ),
    _pattern(
        rf"{_I_HAVE}{_OFTEN} (?:switched|changed|moved) to{_NAME} as my (?:new )?(?P<of>{_ONE_SERVICE})",
        "has", is_name=True,
    ),
    _pattern(rf"my{_OFTEN} (?:new )?(?P<of>favou?rite [a-z]+(?: [a-z]+)?) is{_OFTEN}{_WHAT}", "has"),
    _pattern(rf"my{_OFTEN} birthday is{_OFTEN} (?:on )?(?:the )?{_DATE}", "is born on"),
    _pattern(rf"{_I} was born on (?:the )?{_DATE}", "is born on"),
    _pattern(rf"{_I_AM}{_OFTEN} (?P<what>\d{{1,3}})(?: years old)?", "is aged"),
    _pattern(rf"(?:i have|i've|i){_OFTEN} turned (?P<what>1?\d{{1,2}})(?: years old)?{_SEASON}", "is aged"),
    _pattern(
        rf"(?:my|our){_OFTEN} (?:(?:new|current|home) )*address is{_OFTEN} (?P<what>(?:[\w'.-]+ ){{0,5}}\d+[\w-]*"
        r"(?:,? [\w'.-]+){0,8})", "has address",
    ),
    _pattern(
        rf"(?:my{_OFTEN} (?:new )?(?:phone|mobile|cell|telephone)(?: number)? (?:is{_OFTEN}|(?:has )?changed to)|"
        rf"(?:you can )?(?:reach|call|text) me (?:at|on)) (?P<what>[+(]?\d[\d ()/-]+\d)",
        "has phone number",
    ),
    _pattern(rf"my{_OFTEN} (?:new )?e-?mail(?: address)? is{_OFTEN} (?P<what>\S+@\S+)", "has e-mail address"),
    _pattern(
        r"my e-?mail(?: address)?(?: has)? changed(?:(?: to|,? (?:and )?(?:it is|it's|it's now|it is now|now it's)|:))"
        r"(?: now)? (?P<what>\S+@\S+)", "has e-mail address",
    ),
    _pattern(
        rf"(?:{_I}{_OFTEN} drive|my{_OFTEN} (?:new )?car is) (?:an?|the) (?:{_QUALITY} "
        rf"){{0,3}}(?P<what>{_CAPITAL}[\w-]*)(?: {_CAPITAL}[\w-]*)?", "drives", is_name=True,
    ),
    _ended(
        rf"{_I_AM}{_OFTEN} (?:no longer|not) (?:an? )?(?P<what>vegetarian|vegan|pescatarian)(?: any\s*more)?", "eats as"
    ),
    _pattern(
        rf"(?:{_I_AM}|{_I_HAVE}{_OFTEN} (?:become|gone|turned|went|became)){_OFTEN} (?:an? )?(?P<what>vegetarian|"
        rf"vegan|pescatarian)", "eats as",
    ),
    _pattern(
        rf"{_I}{_OFTEN} prefer (?:the |an? )?(?P<what>[\w-]+) (?P<of>seats?|rooms?|tables?|beds?|pillows?|"
        rf"payments?|delivery|mode|theme|units?|format)", "prefers",
    ),
    # What somebody has many of
    _ended(rf"{_I_AM}{_OFTEN} (?:not|no longer){_OFTEN} allergic to{_MAYBE_ANYMORE}", "is allergic to"),
    _ended(rf"{_I_HAVE}{_OFTEN} outgrown my (?P<what>[\w\s-]+?) allergy", "is allergic to"),
    _pattern(rf"{_I_AM}{_OFTEN} allergic to{_WHAT}", "is allergic to"),
    _ended(
        rf"{_I}{_OFTEN} (?:hate|dislike|don't (?:really )?like|do not like|can't stand|cannot stand|no longer "
        rf"(?:like|love|enjoy)|don't enjoy|loathe|detest){_MAYBE_ANYMORE}", "likes",
    ),
    _ended(
        rf"{_I_HAVE}{_OFTEN} (?:stopped (?:liking|loving|enjoying)|grown tired of|gone off|went off){_WHAT}",
        "likes",
    ),
    _ended(rf"{_I_AM}{_OFTEN} (?:not|no longer) (?:a (?:big )?fan of|into|fond of|keen on){_MAYBE_ANYMORE}", "likes"),
    _pattern(
        rf"(?:{_I}{_OFTEN} (?:like|love|enjoy|adore)|{_I_HAVE}{_OFTEN} (?:come|grown|learn(?:ed|t)) to (?:like|love|"
        rf"enjoy)){_WHAT}", "likes",
    ),
    _pattern(rf"{_I_AM}{_OFTEN} (?:a (?:big |huge )?fan of|into|fond of|keen on){_WHAT}", "likes"),
    _ended(
        rf"{_I_HAVE}{_OFTEN} (?:sold|gave away|given away|lost) (?:my|our|the){_WHAT}", "has", is_kind=True,
    ),
    _ended(rf"{_I}{_OFTEN} no longer (?:have|own) (?:an?|my|our){_WHAT}", "has", is_kind=True),
    _ended(rf"{_I}{_OFTEN} (?:don't|do not) (?:have|own) (?:an?|my|our){_ANYMORE}", "has", is_kind=True),
    _ended(
        rf"(?:my|our) (?P<what>(?:{_QUALITY} )*{_PET})(?: (?P<name>{_CAPITAL}[\w'-]*))? "
        r"(?:(?:has )?(?:died|passed away|run away|ran away)|is dead)", "has", is_kind=True,
    ),
    _pattern(
        rf"(?:my|our) (?:new )?(?P<what>{_PET})(?: is{_OFTEN} (?:called|named)|'s name is) "
        rf"(?P<name>{_CAPITAL}[\w'-]*)", "has", is_kind=True,
    ),
    _pattern(rf"{_I_HAVE}{_OFTEN} (?:adopted|bought|own|got|have) (?:an?|my|our){_WHAT}", "has", is_kind=True),
    _pattern(rf"{_I}{_OFTEN} (?:have|own) an?{_WHAT}", "has", is_kind=True),
    _ended(rf"{_I}{_OFTEN} no longer (?P<of>{_DO}){_WHAT}", "does"),
    _ended(rf"{_I}{_OFTEN} (?:don't|do not) (?P<of>{_DO}){_MAYBE_ANYMORE}", "does"),
    _ended(rf"{_I_HAVE}{_OFTEN} (?:stopped|quit|given up|gave up) (?P<of>{_DOING}){_WHAT}", "does"),
    _ended(rf"{_I_HAVE}{_OFTEN} (?:quit|given up|gave up) (?P<what>coffee|tea|alcohol|beer|wine|soda)", "does drink"),
    _ended(rf"{_I_HAVE}{_OFTEN} (?:quit|given up|gave up) (?P<what>meat|fish|sugar|dairy|chocolate)", "does eat"),
    _pattern(rf"{_I}{_OFTEN} (?P<of>{_DO}){_MUCH} (?P<what>[^,;:!?()\n]+?){_HOW_OFTEN}", "does"),
    _pattern(rf"{_I_HAVE}{_OFTEN} (?:started|begun|began) (?P<of>{_DOING}){_WHAT}", "does"),
)  # fmt: skip

ENGLISH: Final = Language(
    lead=re.compile(_LEAD, re.IGNORECASE),
    tail=re.compile(_TAIL, re.IGNORECASE),
    detail=re.compile(_DETAIL, re.IGNORECASE),
    undone=re.compile(
        r"\b(?:back|return(?:ed)?|left|not|only|but|wrong|lied|lie|wish|think|guess)\b|"
        r"n't(?! (?:take|stand|bear|afford) it)", re.IGNORECASE
    ),
    patterns=_ENGLISH,
    own=re.compile(r"\b(?:i|im|ive|weve|me|my|mine|myself|we|us|our|ours)\b", re.IGNORECASE),
    empty=re.compile(
        r"(?:(?:and|but|so|ok|okay|well|oh|yes|no|ah|hm+|hi|hey|hello)\b[,!.\s]*)*(?:"
        r"(?:thank|thanks|please|sorry|sure|great|good|nice|cool|perfect|welcome|cheers|bye|goodbye|see you|"
        r"let me|let's|"
        r"tell me|show me|give me|help me|remind me|can|could|would|will|do|does|what|who|where|when|why|how)\b"
        r"|(?:i|we)(?: (?:really|just|also|still|only|do|don't|did|didn't|do not|did not|can|can't|could|couldn't|"
        r"would|will|am|was))* (?:see|understand|agree|guess|wonder|mean|know|think|believe|suppose|hope|apologi[sz]e|"
        r"appreciate|remember|forgot|said|say|ask|asked|understood|figured|wondering|hoping|looking forward|"
        r"sorry|afraid|"
        r"not sure|sure|glad|happy to (?:hear|help))\b"
        r"|(?:i|we)(?:'d| would|'ll| will)\b"
        r"|i'm (?:sorry|not sure|sure|glad|afraid|wondering|looking for(?:ward)?|just (?:asking|curious)|curious)\b"
        r"|(?:i|we) (?:want|need|like) (?:you|to (?:know|ask|see|say|talk|thank|hear)|help|a (?:hand|moment|"
        r"question))\b"
        r"|i have (?:a|another|one more|some) (?:quick )?questions?\b)",
        re.IGNORECASE,
    ),
    unsure=re.compile(
        r"\b(?:used to|when i was|as a (?:child|kid|student|teenager|boy|girl)|years? ago|back then|if|unless|"
        r"would|might|could|should|want to|wants to|wanted to|hope|hopes|hoping|plan|plans|planning|dream|"
        r"dreamt|dreamed|"
        r"wish|almost|nearly|until|till|once|previously|formerly|earlier|next (?:week|month|year|spring|"
        r"summer|autumn|fall|"
        r"winter|\w+day)|tomorrow|going to|gonna|temporarily|for (?:a|the|two|three|some) (?:few )?(?:days?|weeks?|"
        r"months?|weekend|holidays?|vacation|summer|winter)|on (?:holiday|vacation)|maybe|perhaps|probably|"
        r"imagine|pretend|"
        r"suppose|joking|kidding|thinking of|thinking about|consider(?:ing)?|never)\b|"
        r"(?-i:\bwill\b)|'ll\b|'d\b|\bor\b",
        re.IGNORECASE,
    ),
    passing=re.compile(
        r"\bhave (?:an?|another|some|one) (?:[a-z]+ ){0,2}(?:questions?|requests?|problems?|issues?|ideas?|meetings?|"
        r"moment|minute|look|feeling|doubts?|favou?r)\b",
        re.IGNORECASE,
    ),
    parts=re.compile(r"\s*(?:,|;)\s*(?:(?:and|but|so) )?(?=(?:i|i'?m|i'?ve|my|we|we'?ve|our|now)\b)"
                     r"| (?:and|but) (?=(?:i|i'?m|i'?ve|my|we|we'?ve|our|now)\b)"
                     r"|\s*, so (?!(?:far|to (?:speak|say)|they say|it seems|much)\b)", re.IGNORECASE),
    aside=re.compile(r"\s*[,;] (?:and )?(?!(?:it|it's|it is)(?: now)? \S+@)(?:it|it's|everything|everybody|everyone|"
                     r"they|they're|there's)\b(?! (?:say|says|seems?|looks?|appears?|claim|think|depends)\b)",
                     re.IGNORECASE),
    one_of_a_kind=frozenset({
        "mother", "mom", "mum", "father", "dad", "wife", "husband", "partner", "girlfriend", "boyfriend", "boss",
        "manager",
    }),
    bases=_BASES,
)  # fmt: skip
