"""The English words of claims: see ``claims``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from graphweft_workers.features.memory.claim_forms import ClaimForm, Language, Mood
from graphweft_workers.features.predicates import DOES, KEPT, OWNED, PERSONS, PHRASES, SERVICES, THINGS
from graphweft_workers.retrieval.topics import KIN

SIZE: Final = r"(?:small|little|tiny|big|large|huge|old|new|young|nice|cute|lovely|beautiful)"
_QUALITY: Final = rf"(?:{SIZE}|red|green|blue|yellow|black|white|brown|gr[ae]y|orange|pink|purple|silver)"
_PET: Final = (
    r"(?:dog|cat|hamster|rabbit|parrot|horse|bird|goldfish|puppy|kitten|turtle|tortoise|guinea pig|budgie|canary|pony|"
    r"ferret|gerbil|lizard|gecko|snake)"
)
_WEEKDAY: Final = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_MONTH: Final = r"(?:january|february|march|april|may|june|july|august|september|october|november|december)"
_SEASON_NAME: Final = r"(?:spring|summer|autumn|fall|winter)"
_LEAD: Final = (
    r"(?:(?:hi|hello|hey|well|yes|no|oh|ok|okay|so|and|but|actually|now|today|yesterday|recently|finally|currently|"
    r"anyway|sorry|please|nowadays|these days|by the way|btw|fyi|for the record|just so you know|sadly|unfortunately|"
    r"luckily|happily|turns out|it turns out(?: that)?|since then|then|meanwhile|in the end|eventually|"
    r"please (?:note|remember)(?: that)?|remember(?: that)?|note(?: that)?|update|correction|news|good news|"
    r"bad news|sad news|big news|guess what|from now on|as of (?:last |this )?\w+|since (?:last )?\w+|from then|"
    rf"last (?:week|month|year|{_SEASON_NAME}|weekend|\w+day)|(?:on )?{_WEEKDAY}|in {_MONTH}|"
    r"(?:a|two|three|some|a few) (?:days?|weeks?|months?) ago|"
    r"(?:i|we)(?: have|'ve)? (?:just )?moved(?: house| home)?(?=[,:;]))\b[,:;!.\s-]*){0,5}"
)
_WHEN: Final = rf"(?:(?:19|20)\d\d|yesterday|today|night|weekend|week|month|year|{_SEASON_NAME}|{_MONTH}|{_WEEKDAY})"
_TAIL: Final = (
    r"(?:,? (?:just so you know|just saying|by the way|btw|fyi|you know|as you know|as i (?:said|mentioned|told you)|"
    r"for the record|in case you (?:wonder|need it)|though|after all|altogether|entirely|"
    r"completely|sadly|unfortunately|"
    r"now|currently|nowadays|today|yesterday|recently|again|instead|these days|from now on|please|actually|this "
    r"morning|"
    rf"officially|(?:since|as of) (?:last )?{_WHEN}|last {_WHEN}|"
    r"(?:a|two|three|some|a few|a couple of) (?:days?|weeks?|months?) ago))$"
)
_DAY: Final = (
    rf"(?:tomorrow|(?:next )?{_WEEKDAY}|next (?:week|month|year|{_SEASON_NAME})|(?:the )?\d{{1,2}}(?:st|nd|rd|th)?"
    rf"(?: of)? {_MONTH}|{_MONTH}(?: \d{{1,2}}(?:st|nd|rd|th)?)?|\d{{4}}-\d\d-\d\d|\d{{1,2}}\.\d{{1,2}}\.)(?:,? "
    rf"20\d\d)?"
)
_STARTS: Final = (
    rf"^(?:from|starting|beginning)(?: on| in)? {_DAY}(?: on(?:wards)?)?(?!\w| to\b),? |"
    rf",? (?:from|starting)(?: on| in)? {_DAY}(?: on(?:wards)?)?[.!]*$"
)
_DETAIL: Final = (
    r"\b(?:with|from|at|in|on|when|whenever|that|as|who|which|where|because|since|so|than|for|by|after|before|during|"
    r"while|without|but|only|except|unless|though|although|too|more|most|much|not|just|every|sometimes|often|here|"
    r"there|today|yesterday|tonight|weekends?|am|is|are|was|were|i|you|he|she|they|we)\b"
)
_OFTEN: Final = (
    r"(?: (?:really|still|now|just|absolutely|currently|recently|finally|actually|already|officially|sadly|since)){0,3}"
)
_I: Final = r"(?:i|we)"
_I_AM: Final = r"(?:i am|i'm|we are|we're)"
_I_HAVE: Final = r"(?:i(?: have|'ve)?|we(?: have|'ve)?)"
_CAPITAL: Final = r"(?-i:[^\W\d_a-z\u00df-\u00f6\u00f8-\u00ff])"
"""A letter that may begin a name: a capital one, or of a script without. ``_is_name`` looks at the others."""
_WORD: Final = rf"{_CAPITAL}[\w'-]*"
_THEY: Final = rf"(?P<who>my {KIN}(?: {_WORD})?|{_WORD}(?: {_WORD})?)"
_WHAT: Final = r" (?P<what>(?:(?:Dr|Mrs?|Ms|Prof|St)\. )?[^,;:!?()\n]+)"
_NAMED: Final = (
    rf"(?P<what>(?:the )?(?:(?:Dr|Mrs?|Ms|Prof|St)\.? )?(?:{_CAPITAL}|(?-i:[ie](?=[A-Z])))[\w&'-]*"
    rf"(?: (?:(?:de|da|do|la|le|am|der|upon|of|del|di) )?{_CAPITAL}[\w&'-]*){{0,3}})"
)
_NAME: Final = f" {_NAMED}"
_SEASON: Final = (
    rf"(?: in (?:early |late )?(?:{_SEASON_NAME}|{_MONTH})| on {_WEEKDAY}| this (?:week|month|{_SEASON_NAME})| at "
    rf"the end of {_MONTH})?"
)
"""Behind what somebody has done: it says when."""
_KIND_OF_FIRM: Final = (
    r"(?:hospital|clinic|school|university|college|library|bank|bakery|museum|hotel|pharmacy|restaurant|airport|"
    r"council|police|court|theatre|theater|cafe|factory|brewery|zoo|(?:town|city) hall|post office|supermarket|"
    r"law firm|start-?up|bookshop|bookstore|insurance company|nursery|kindergarten|ministry|embassy|shipyard|"
    r"care home|fire brigade|florist|garage|shop|store|company|agency|charity|newspaper|lab|laboratory|prison|port)"
)
_SOME_FIRM: Final = rf" (?P<some>the|an?) (?P<what>(?:[a-z]+ ){{0,2}}{_KIND_OF_FIRM})(?: in {_WORD}(?: {_WORD})?)?"
_FIRM: Final = rf"{_NAME[:-1]}(?: {_KIND_OF_FIRM})?)(?: in {_WORD}(?: {_WORD})?)?"
_HOW_OFTEN: Final = (
    r"(?P<often>(?: (?:daily|a lot|(?:every|each) (?:single )?(?:day|morning|evening|night|week|weekend|"
    rf"{_WEEKDAY})|(?:(?:once|twice|three times) )?(?:a|per) (?:day|week|month)|on (?:{_WEEKDAY}s|weekdays|weekends)))?"
    r"(?:, (?:\w+ )?(?:cups?|glass(?:es)?|times|hours?|packs?) (?:a|every|per) (?:day|week))?)"
)
_MUCH: Final = (
    r"(?P<much>(?: (?:(?:far |way )?too much|a lot of|lots of|plenty of|(?:a|one|two|three|four|five|six|\d+)"
    r"(?: (?:cups?|glass(?:es)?|bottles?|packs?|pints?) of)?))?)"
)
_PARTNER: Final = r"(?:girlfriend|boyfriend|wife|husband|partner|fianc[e\u00e9]e?|spouse)"
_ONE_SERVICE: Final = f"(?:{'|'.join(SERVICES)})"
_ONE_THING: Final = f"(?:{'|'.join(THINGS)})"
_BASES: Final = {f"{each.removesuffix('e')}ing": each for each in DOES} | {
    "running": "run", "practicing": "practise", "practice": "practise",
}  # fmt: skip
_PHRASES: Final = {
    f"{doing} {rest}": f"{verb} {rest}"
    for verb, _, rest in (each.partition(" ") for each in PHRASES)
    for doing in (f"{verb.removesuffix('e')}ing", f"{verb}ming", f"{verb.removesuffix('e')}ed")
}
"""What somebody does somewhere or with others, by the form behind "stopped"."""
_DO: Final = f"(?:{'|'.join((*DOES, *_BASES))})"
_PHRASE: Final = f"(?:{'|'.join((*PHRASES, *_PHRASES))})"
_DATE: Final = (
    r"(?P<what>(?:\d[\d./-]*(?:st|nd|rd|th)?(?: of)?(?: [a-z]+)?(?: \d+)?|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|"
    r"nov|dec)[a-z]* (?:the )?\d+(?:st|nd|rd|th)?(?: \d+)?))"
)
_BE_BACK: Final = r"(?:back |over |down |up |out |house |away )?"
_COMPANY: Final = (
    r"(?P<beside>(?: (?:together )?with (?:my|our)(?: (?!(?:in|at|on|from|for|until|till|during|when|while|every|if|"
    r"because|since)\b)[\w'&-]+){1,10})?)"
)
"""Behind a home: it says with whom, and no less where."""
_AT_FIRM: Final = (
    rf"(?P<at>(?: (?:at|for|in) (?:(?:the )?(?:St\. )?{_CAPITAL}[\w&'-]*(?: {_CAPITAL}[\w&'-]*){{0,3}}"
    rf"(?: {_KIND_OF_FIRM})?|(?:an?|the) (?:[a-z]+ )?{_KIND_OF_FIRM}))?)"
)
_PROFESSION: Final = (
    r"(?:teacher|nurse|midwife|paramedic|doctor|surgeon|dentist|pharmacist|vet|veterinarian|physiotherapist|"
    r"psychologist|psychiatrist|therapist|carpenter|plumber|electrician|mechanic|welder|bricklayer|roofer|engineer|"
    r"developer|programmer|administrator|architect|designer|analyst|consultant|accountant|lawyer|solicitor|"
    r"librarian|journalist|translator|interpreter|scientist|researcher|physicist|chemist|"
    r"biologist|professor|lecturer|principal|headteacher|chef|cook|baker|butcher|barista|waiter|waitress|bartender|"
    r"hairdresser|barber|farmer|gardener|florist|firefighter|police officer|policeman|policewoman|soldier|"
    r"postman|pilot|flight attendant|(?:bus|taxi|truck|lorry|train|tram) driver|social worker|secretary|"
    r"receptionist|cashier|electrical engineer|(?:project|product|office|shop|store|hotel) manager|estate agent|"
    r"photographer|tailor|painter|potter|painter|actor|actress|musician|writer|author|editor|freelancer|"
    r"tour guide|personal trainer|yoga teacher|judge|notary)"
)
_NOT_BY_TRADE: Final = (
    r"(?!(?:retired|former|trained|trainee|aspiring|amateur|hobby|part-time|weekend|volunteer|would-be|ex|past|"
    r"future|terrible|bad|lousy|good|great|decent|better|worse|big|huge)\b)"
)
_TRADE: Final = rf"(?P<what>(?:{_NOT_BY_TRADE}[a-z]+ ){{0,2}}{_PROFESSION})"
_GREETED: Final = f"(?:{'|'.join(f'(?<={each})' for each in ('hi ', 'hi, ', 'hey ', 'hey, ', 'hello ', 'hello, '))})"
"""Behind a greeting "I'm Robert" is a name."""
_MOVED: Final = "|".join(f"(?<={each}[,:;] )" for each in ("moved", "moved house", "moved home", "settled in"))
"""Behind these "we're in Rennes" is a home."""
_MY_NEW: Final = rf"(?:my|our){_OFTEN} (?:(?:new|current) )?"
_IS: Final = rf"(?: is|'s|: | are){_OFTEN}"
_PLAN: Final = r"(?:plan|tier|tariff|subscription|package|membership)"
_TIER: Final = (
    r"(?-i:Pro|Premium|Basic|Free|Plus|Business|Enterprise|Standard|Team|Starter|Gold|Silver|Platinum|Family|"
    r"Individual|"
    r"Max|Ultimate|Essential|Student)"
)
_MEAT: Final = r"(?:meat|beef|pork|chicken|steaks?|sausages)"
_LEFT: Final = r"(?:left|quit|resigned from|dropped out of|parted ways with)"
_PARTED: Final = (
    r"(?:sold|donated|gave away|given away|got rid of|gotten rid of|traded in|threw (?:away|out)|thrown (?:away|out)|"
    r"scrapped|auctioned(?: off)?|returned|junked|totall?ed|wrecked)"
)
_ADJUNCT: Final = r"(?: (?:to|on|via|in exchange for|for \$?\d|at the flea market)\b[^,;:!?()\n]*)?"
"""To whom, or where, somebody has sold or given something."""
_MINE: Final = r"(?:(?:my|our|the) )"
_SOMEHOW: Final = (
    r"(?: (?:on|in|at|by|from|of|during|after|to|with|under|peacefully|suddenly|unexpectedly)\b(?![^,;:!?()"
    r"\n]*\b(?:films?|"
    r"movies?|books?|games?|dreams?|shows?|stor(?:y|ies)|series|videos?|songs?|play|laugh\w*|fear|boredom|envy|sofa|"
    r"head|"
    r"heart|mind|workshop)\b)[^,;:!?()\n]*)?"
)
"""How or where something ended, but in no story."""
_GONE: Final = (
    r"(?:(?:(?:is|are|was|were|got|has been|have been) (?:sold|stolen|scrapped|scrap|totall?ed|wrecked|written off|"
    r"donated|"
    rf"given away|thrown away|cancell?ed|terminated|discontinued){_SOMEHOW}|(?:is|are|was|were) (?:history|no more|"
    rf"gone|over|"
    r"a thing of the past))|(?:has )?(?:expired|lapsed)|(?:has )?(?:broke|broken) down (?:for good|beyond repair))"
)
_DIED: Final = (
    r"(?:(?:has |have )?(?:died|passed away|passed on|run away|ran away|flown away|flew away|escaped|crossed the "
    r"rainbow "
    r"bridge)|(?:is|are) (?:dead|in heaven)|(?:is|are) no longer (?:with us|alive)|(?:was|were|got|had to be) (?:put "
    r"(?:down|"
    rf"to sleep)|euthani[sz]ed|run over|killed))(?: (?:last|this) \w+)?{_SOMEHOW}"
)
_LEFT_POST: Final = (
    r"(?:(?:has )?(?:retired|resigned|quit|left(?: (?:the|our) (?:company|firm|team|practice|school)| us)?|moved on|"
    r"been replaced(?: by [^,;:!?()\n]+)?)|(?:was|got) (?:fired|replaced(?: by [^,;:!?()\n]+)?))"
)
_CURED: Final = (
    r"(?:(?:is|has) (?:gone(?: away)?|cured|cleared up|healed|disappeared|vanished)|went away|cleared up|disappeared|"
    r"healed)"
)
_ENDED: Final = (
    r"(?:cancell?ed|ended|terminated|dropped|deleted|unsubscribed from|let go of|"
    r"(?:shut|closed) down|wound up|pulled out of|withdrawn from|withdrew from|opted out of)"
)
_QUIT: Final = (
    r"(?:quit|given up|gave up|stopped|dropped|come off|came off|gone off|went off|finished with|done with|packed in|"
    r"said goodbye to|turned my back on|cut out|weaned myself off)"
)
_GAVE: Final = r"(?:gave|given)"
_AWAY: Final = (
    rf"(?:away|up(?: for adoption)?|to (?:a|my|our|the|another|some) (?:new )?(?:{KIN}|family|home|shelter|school|"
    rf"charity|museum))"
)
_FOR_GOOD: Final = r"(?: (?:for good|permanently|forever))?"
_GROUP: Final = (
    r"(?:club|choir|band|orchestra|team|party|church|company|firm|group|class|course|board|society|committee|project|"
    r"union|league|association|army|navy|school|university|programme|program)"
)
"""What somebody leaves for good, and not for the day."""
_ILLNESS: Final = (
    r"(?:diabetes|asthma|insomnia|migraines?|hay fever|covid|flu|shingles|tinnitus|an[a]?emia|depression|arthritis|"
    r"back pain|high blood pressure|eczema|measles|mumps|bronchitis|pneumonia)"
)


def _forms(predicate: str, *words: str, **more: bool | tuple[str, ...]) -> Iterator[ClaimForm]:
    for each in words:
        yield ClaimForm(words=re.compile(each, re.IGNORECASE), predicate=predicate, **more)  # type: ignore[arg-type]


def _named(predicate: str, *words: str, **more: bool | tuple[str, ...]) -> Iterator[ClaimForm]:
    """Yield forms whose object is a name."""
    return _forms(predicate, *words, is_name=True, **more)


_ENGLISH: Final = (
    # Where somebody lives
    *_named(
        "lives in",
        rf"{_I}{_OFTEN} (?:live|living|reside) (?:in|at|on){_NAME}{_COMPANY}",
        rf"(?:{_I}{_OFTEN} live|{_I_AM}{_OFTEN} living) (?:in|on|at) (?:\d+\w? )?(?:{_WORD} ){{1,3}}"
        rf"(?:Street|St\.?|Road|Rd\.?|Avenue|Lane|Square|Drive|Place|Close),? in{_NAME}",
        rf"(?:{_I_AM}|{_I_HAVE} been){_OFTEN} (?:living|based|settled) (?:in|at){_NAME}{_COMPANY}",
        rf"{_I}{_OFTEN} (?:live|rent) (?:in )?(?:an?|the|our|my) (?:[a-z]+ )?(?:flat|apartment|house|room|studio) "
        rf"in{_NAME}",
        rf"{_I_HAVE}{_OFTEN} (?:relocated|moved house) {_BE_BACK}(?:from {_CAPITAL}[\w -]*? )"
        rf"?to{_NAME}{_SEASON}{_FOR_GOOD}",
        rf"{_I_HAVE}{_OFTEN} (?:settled|put down roots)(?: down)? in{_NAME}",
        rf"{_I_HAVE}{_OFTEN} (?:moved into|found|got) (?:a|an|our|my) (?:new )?(?:flat|apartment|house|place) "
        rf"in{_NAME}",
        rf"{_I_AM}{_OFTEN} renting (?:a|an) (?:new )?(?:flat|apartment|house|place|room) in{_NAME}",
        rf"{_MY_NEW}(?:home|flat|apartment|house|place|address|home address) is{_OFTEN}(?: (?:in|at))?{_NAME}",
        rf"(?:{_MOVED})(?:i'm|we're|i am|we are|i live|we live){_OFTEN} in{_NAME}",
        rf"{_I_HAVE}{_OFTEN} (?:bought|rented) (?:an?|our|my) (?:new )?(?:flat|apartment|house|place) in{_NAME} and "
        rf"(?:have )?"
        rf"moved in",
        rf"home is{_OFTEN}(?: in)?{_NAME}", rf"{_I}{_OFTEN} call{_NAME} (?:my )?home",
        rf"{_NAMED} (?:is|has become){_OFTEN} (?:(?:my|our) (?:new )?home|where {_I}{_OFTEN} live)",
        rf"{_THEY}{_OFTEN} lives{_OFTEN} in{_NAME}", rf"{_THEY}(?: is|'s){_OFTEN} (?:living|based) in{_NAME}",
    ),
    *_named(
        "lives in", rf"{_I_HAVE}{_OFTEN} moved {_BE_BACK}(?:from {_CAPITAL}[\w -]*? )"
            rf"?to{_NAME}{_COMPANY}{_SEASON}{_FOR_GOOD}",
        is_place=True,
    ),
    *_named(
        "lives in",
        rf"{_THEY}(?: has|'s)?{_OFTEN} (?:moved|relocated) {_BE_BACK}(?:from {_CAPITAL}[\w -]*? )?to{_NAME}{_SEASON}",
        is_place=True, is_change=True,
    ),
    *_named("lives in", rf"{_I_HAVE}{_OFTEN} moved (?:away from|out of){_NAME}", holds=False),
    *_named(
        "lives in", rf"{_THEY} (?:no longer lives|(?:doesn't|does not) live) in{_NAME}(?: any\s*more| any longer)?",
        rf"{_THEY}(?: has|'s)?{_OFTEN} moved (?:away from|out of){_NAME}", holds=False, is_change=True,
    ),
    # Work
    *_named(
        "works for",
        rf"{_I_HAVE}{_OFTEN} (?:quit|left|lost) my job (?:at|with){_NAME}{_SEASON}",
        rf"{_I} (?:was|got|have been){_OFTEN} (?:fired|laid off|let go|sacked|made redundant) (?:from|by|at){_NAME}",
        rf"{_NAMED}(?: has)?{_OFTEN} (?:fired me|laid me off|let me go|sacked me|made me redundant)",
        rf"{_I} (?:don't|do not) work with{_NAME}(?: any\s*more| any longer)",
        holds=False,
    ),
    *_forms(
        "works for",
        rf"{_I} (?:was|got|have been){_OFTEN} (?:fired|laid off|let go|sacked|made redundant)(?P<any>)",
        rf"{_I_HAVE}{_OFTEN} (?:quit|left|lost) my job(?P<any>)",
        rf"{_I} (?:no longer work there|(?:don't|do not) work there (?:any\s*more|any longer))(?P<any>)",
        rf"the {_KIND_OF_FIRM} (?:has )?(?:fired me|laid me off|let me go|sacked me|made me redundant)(?P<any>)",
        holds=False,
    ),
    *_forms(
        "lives in", rf"{_I} (?:no longer live there|(?:don't|do not) live there (?:any\s*more|any longer))(?P<any>)",
        holds=False,
    ),
    *_forms(
        "works for", rf"(?:{_I_HAVE}{_OFTEN} retired{_SEASON}|{_I_AM}{_OFTEN} (?:unemployed|retired))(?P<any>)",
        holds=False, also=("works as",),
    ),
    *_forms(
        "works as",
        rf"(?:{_I}{_OFTEN} work|{_I_AM}{_OFTEN} working) as an? (?P<what>[^,;:!?()\n]+?){_AT_FIRM}",
        rf"{_I_AM}{_OFTEN} an? {_NOT_BY_TRADE}{_TRADE}{_AT_FIRM}",
        rf"{_I_HAVE}{_OFTEN} (?:become|became|retrained as|qualified as) an? {_TRADE}{_AT_FIRM}",
        rf"{_MY_NEW}(?:job title|profession|occupation) is{_OFTEN}{_WHAT}",
        rf"{_MY_NEW}job is{_OFTEN} (?:being )?an? {_TRADE}",
        rf"{_I} (?:was|got|have been){_OFTEN} promoted to{_WHAT}",
    ),
    *_forms("works as", rf"{_THEY}{_OFTEN} works as (?:an? )?(?P<what>[^,;:!?()\n]+)"),
    *_forms("works for", rf"{_I}{_OFTEN} (?:work|working) (?:at|for){_SOME_FIRM}"),
    *_forms(
        "works for",
        rf"{_I_HAVE}{_OFTEN} (?:started|begun) (?:working|work|(?:a|my) (?:new )?job) (?:at|for|with)"
        rf"{_SOME_FIRM}{_SEASON}",
        rf"{_I_HAVE}{_OFTEN} got (?:a (?:new )?job|hired) (?:at|by|with){_SOME_FIRM}{_SEASON}",
        rf"{_MY_NEW}job is{_OFTEN} (?:at|with){_SOME_FIRM}",
    ),
    *_named(
        "works for",
        rf"{_I}{_OFTEN} (?:work|working) (?:at|for){_FIRM}", rf"(?<=from then )i'm (?:at|with){_FIRM}",
        rf"{_I_AM}{_OFTEN} (?:working (?:at|for)|employed (?:at|by)){_FIRM}",
        rf"{_I_HAVE}{_OFTEN} joined{_FIRM} as (?:an?|the|their) [a-z ]+",
        rf"{_I_HAVE}{_OFTEN} (?:started (?:working |work )?|got hired |took up work |signed a contract |accepted an "
        rf"offer |(?:started|"
        rf"begun|got|took|taken|accepted|found|landed|have) (?:an?|my) (?:new )?(?:job|position|role|post) )"
        rf"(?:at|for|by|with|from){_NAME}{_SEASON}",
        rf"{_I_HAVE}{_OFTEN} (?:changed|switched) (?:jobs|employers?|companies) (?:and )?(?:(?:went|moved) )?to{_NAME}",
        rf"{_MY_NEW}(?:employer|company|firm) is{_OFTEN}{_NAME}", rf"{_MY_NEW}job is{_OFTEN} (?:at|with){_NAME}",
        rf"{_NAMED} (?:is|has become){_OFTEN} my (?:new )?employer", rf"{_NAMED}(?: has)?{_OFTEN} hired me",
        rf"{_THEY}{_OFTEN} works{_OFTEN} (?:at|for){_NAME}", rf"{_THEY}(?: is|'s){_OFTEN} working (?:at|for){_NAME}",
    ),
    *_named(
        "works for",
        rf"{_THEY}(?: has|'s)?{_OFTEN} (?:started (?:working|(?:a|his|her|their) (?:new )?job)|got a (?:new )?job|"
        rf"changed jobs and (?:went|moved) to) ?(?:at|for|with)?{_NAME}", is_change=True,
    ),
    *_named(
        "works for",
        rf"{_THEY} (?:no longer works|(?:doesn't|does not) work) (?:at|for){_NAME}(?: any\s*more| any longer)?",
        rf"{_THEY}(?: has|'s)?{_OFTEN} (?:quit|left) (?:his|her|their) job at{_NAME}",
        holds=False, is_change=True,
    ),
    *_forms(
        "studies",
        rf"(?:{_I_AM}{_OFTEN} studying|{_I}{_OFTEN} study) (?!(?:every|hard|a lot|all|late|alone|together|to|abroad|"
        rf"now|until|best|about)\b)(?P<what>[^,;:!?()\n]+?){_AT_FIRM}",
        rf"(?:my major is|{_I_HAVE}{_OFTEN} (?:switched|changed) my major to){_OFTEN}{_WHAT}",
    ),
    *_forms(
        "studies", rf"{_I_HAVE}{_OFTEN} (?:graduated|finished my (?:degree|studies)|finished university|"
        r"dropped out(?: of (?:university|uni|college))?)(?P<any>)", holds=False,
    ),
    # Names
    *_named("is called", rf"(?:don't|do not|stop) call(?:ing)? me{_NAME}(?: anymore| any more)?", holds=False),
    *_named(
        "is called",
        rf"(?:my{_OFTEN} (?:new )?name is{_OFTEN}|my name's){_NAME}", rf"(?:{_I_AM}{_OFTEN} called|call me){_NAME}",
        rf"{_GREETED}(?:i am|i'm)(?! OK\b){_NAME}",
        rf"{_I_HAVE}{_OFTEN} changed my (?:last |sur)?name to{_NAME}", rf"{_I} go by{_NAME}",
    ),
    # Partners
    *_named(
        "has partner",
        rf"{_I_HAVE}{_OFTEN} (?:broke(?:n)? up|split up|separated|broken off|ended things) (?:with|from){_NAME}",
        rf"{_NAMED} and i(?: have|'ve| are)?{_OFTEN} (?:broke(?:n)? up|split up|split|separated|divorced|got divorced|"
        r"getting divorced|getting a divorce|got a divorce|called it quits|parted ways|no longer together|not "
        r"together any\s*more|no longer a couple|"
        r"called off (?:the|our) (?:engagement|wedding)|no longer engaged)",
        rf"it's over between me and{_NAME}", rf"it's over between{_NAME} and me(?:, no more partner)?",
        rf"(?P<what>{_WORD}) (?:has )?(?:left|dumped|divorced|(?:broke|broken|split) up with) me",
        holds=False,
    ),
    *_forms(
        "has partner",
        rf"my {_PARTNER} (?:and i (?:have |are )?(?:broke(?:n)? up|split up|separated|divorced|got divorced|no longer "
        rf"together)|(?:has )?(?:left|dumped|(?:broke|broken|split) up with) me)(?P<any>)",
        rf"(?:{_I_AM}{_OFTEN} (?:single|divorced|widowed|no longer married|not married any\s*more)|{_I_HAVE}{_OFTEN} "
        rf"(?:got|gotten) (?:divorced|a divorce)|we (?:broke up|split up))(?P<any>)",
        holds=False,
    ),
    *_named(
        "has partner",
        rf"{_MY_NEW}{_PARTNER}(?: is|'s){_OFTEN} (?:(?:called|named) )?{_NAMED}",
        rf"my{_OFTEN} (?:new )?{_PARTNER}'s name is{_NAME}",
        rf"{_I_AM}{_OFTEN} (?:dating|seeing|engaged to|married to|together with|in a relationship with){_NAME}",
        rf"{_I_HAVE}{_OFTEN} (?:married|got (?:married|engaged) to|started (?:dating|seeing)){_NAME}",
        rf"(?P<what>{_WORD}) and i (?:are|got){_OFTEN} (?:married|engaged|together|dating|a couple)",
        rf"(?P<what>{_WORD}) is{_OFTEN} my (?:new )?{_PARTNER}",
    ),
    *_forms(
        "has partner", rf"{_I_HAVE}{_OFTEN} (?:got|gotten) (?:married|engaged)(?P<any>){_SEASON}",
        rf"{_I_AM}{_OFTEN} (?:married|engaged|in a (?:new )?relationship)(?P<any>)",
        rf"{_I}{_OFTEN} (?:have|found|met) a (?:new )?{_PARTNER}(?P<any>)",
    ),
    # Persons and things of which somebody has one
    *_named(
        "has",
        rf"{_MY_NEW}(?P<of>{_ONE_SERVICE}|{_ONE_THING})(?: is|'s){_OFTEN} (?:(?:called|named|an?|the|now|with) )"
        rf"?{_NAMED}(?: \d\w*)?"
        r"(?: (?:Pro|Max|Plus|Mini|Ultra))*",
        rf"{_I_HAVE}{_OFTEN} (?:switched|changed|moved) to{_NAME} as my (?:new )?(?P<of>{_ONE_SERVICE})",
        rf"{_NAMED} (?:is|has become|took over|has taken over)(?: from {_WORD}(?: {_WORD})?)?{_OFTEN} (?:as )?my "
        rf"(?:new )?"
        rf"(?P<of>{_ONE_SERVICE})(?: now)?",
        rf"{_NAMED} (?:has )?replaced {_WORD} as my (?:new )?(?P<of>{_ONE_SERVICE})",
        rf"{_I_HAVE}{_OFTEN} (?:got|gotten|have)? ?a new (?P<of>{_ONE_SERVICE})(?:,|:| called| named)? (?:(?:his|her)"
        rf" name is )?"
        rf"{_NAMED}",
        rf"{_I_HAVE}{_OFTEN} (?:changed|switched) (?P<of>{_ONE_SERVICE}|{_ONE_THING})s?(?:,| and|:|;) (?:(?:it|he|she|"
        rf"mine|{_I})(?:'s|'m| is| am| go to| see) )?(?:now )?(?:with )?{_NAMED}",
        rf"{_I}{_OFTEN} (?P<of>bank) (?:with|at){_NAME}",
        rf"{_I_AM}{_OFTEN} on(?: the)?{_NAME} (?P<of>plan)(?: of {_WORD})?",
        rf"my (?P<of>plan) is(?: the)?{_NAME}",
        rf"{_I_HAVE}{_OFTEN} (?:upgraded|downgraded|switched|moved|changed|transferred|been moved|joined)(?: to)?(?: "
        rf"the)? "
        rf"(?P<what>{_CAPITAL}[\w +-]*?) (?P<of>{_ONE_THING})",
        rf"{_I_AM}{_OFTEN} (?:on|in)(?: the)?{_NAME} (?P<of>team)",
    ),
    *_named(
        "has plan",
        rf"{_I_AM}{_OFTEN} on(?: the)?{_NAME} (?:tier|tariff|subscription|package)",
        rf"{_I_HAVE}{_OFTEN} (?:upgraded|downgraded|switched|moved|changed|gone back|went back)(?: my plan| my "
        rf"subscription)? to(?: the)? (?P<what>{_TIER})(?: {_PLAN})?",
    ),
    *_named("has doctor", rf"{_I}{_OFTEN} (?:see|go to) (?P<what>Dr\.? {_WORD})"),
    *_named(
        "has phone", rf"{_I_HAVE}{_OFTEN} (?:have|got|bought|switched to) an? (?:new )?(?P<what>iPhone|Pixel|Galaxy|"
            rf"Samsung|"
        rf"Fairphone|Xiaomi|OnePlus)(?: [\w+-]+){{0,2}}",
    ),
    *_forms(
        "has",
        rf"{_MY_NEW}(?P<of>favou?rite [a-z]+(?: [a-z]+)?) is{_OFTEN}{_WHAT}",
    ),
    *_forms(
        "is born on", rf"my{_OFTEN} birthday is{_OFTEN} (?:on )?(?:the )?{_DATE}", rf"{_I} was born on (?:the )"
            rf"?{_DATE}",
    ),
    *_forms(
        "is aged", rf"{_I_AM}{_OFTEN} (?P<what>\d{{1,3}})(?: years old)?",
        rf"(?:i have|i've|i){_OFTEN} turned (?P<what>1?\d{{1,2}})(?: years old)?{_SEASON}",
    ),
    *_forms(
        "has address",
        rf"{_I_HAVE}{_OFTEN} moved to (?P<what>\d+\w? {_WORD}(?: {_WORD}){{0,3}}(?:,? [\w'.-]+){{0,3}})",
        rf"{_I}{_OFTEN} live{_OFTEN} at (?P<what>\d+\w? {_WORD}(?: {_WORD}){{0,3}}(?:,? [\w'.-]+){{0,3}})",
        rf"(?:my|our){_OFTEN} (?:(?:new|current|home) )*address is{_OFTEN} (?P<what>(?:[\w'.-]+ ){{0,5}}\d+[\w-]*"
        r"(?:,? [\w'.-]+){0,8})",
    ),
    *_forms(
        "has phone number",
        rf"(?:my{_OFTEN} (?:new )?(?:(?:phone|mobile|cell|telephone)(?: number)?|number) (?:is{_OFTEN}|(?:has )"
        rf"?changed "
        rf"to)|(?:you can )?(?:reach|call|text) me (?:at|on|under)) (?P<what>[+(]?\d[\d ()/-]+\d)",
        rf"{_I_HAVE}{_OFTEN} (?:have |got )?a new (?:(?:phone|mobile|cell) )?number(?:,|:| -)? (?:it's )?"
        r"(?P<what>[+(]?\d[\d ()/-]+\d)",
    ),
    *_forms(
        "has e-mail address",
        rf"my{_OFTEN} (?:new )?e-?mail(?: address)? is{_OFTEN} (?P<what>\S+@\S+)",
        r"my e-?mail(?: address)?(?: has)? changed(?:(?: to|,? (?:and )?(?:it is|it's|it's now|it is now|now it's)|:))"
        r"(?: now)? (?P<what>\S+@\S+)",
        r"(?:please )?(?:use|write to|(?:e-?)?mail me at|reach me at) (?P<what>[^\s,;]+@[^\s,;]+)(?: instead| from "
        r"now on)?(?:,? (?:the|my) old "
        r"(?:one|address|e-?mail) is (?:dead|gone|no longer valid))?",
    ),
    *_named(
        "drives",
        rf"(?:{_I}{_OFTEN} drive|my{_OFTEN} (?:new )?car is|{_I_HAVE}{_OFTEN} switched to driving) (?:an?|the) "
        rf"(?:{_QUALITY} ){{0,3}}(?P<what>{_WORD})(?: {_WORD})?",
    ),
    *_forms("drives", rf"{_I_HAVE}{_OFTEN} (?:{_PARTED}) (?:my|our|the) car{_ADJUNCT}(?P<any>)", holds=False),
    *_forms(
        "eats as",
        rf"(?:{_I_AM}|{_I_HAVE}{_OFTEN} (?:become|gone|turned|went|became)){_OFTEN} (?:an? )?(?P<what>vegetarian|"
        rf"vegan|pescatarian)",
    ),
    *_forms("does eat", rf"{_I}{_OFTEN} (?P<eat>eat|eating) (?P<what>{_MEAT})", also=("eats as",)),
    *_forms(
        "prefers",
        rf"{_I}(?:{_OFTEN} prefer|'d(?: now)? rather have) (?:the |an? )?(?P<what>[\w-]+) (?P<of>seats?|rooms?|"
        rf"tables?|beds?|pillows?|payments?|delivery|mode|theme|units?|format)",
    ),
    *_forms("prefers seat", rf"{_I}(?:{_OFTEN} prefer|'d(?: now)? rather have) (?:the|an) (?P<what>aisle|window)"),
    # What somebody has many of
    *_forms("is allergic to", rf"{_I_AM}{_OFTEN} allergic to{_WHAT}"),
    *_forms(
        "is allergic to", rf"{_I_HAVE}{_OFTEN} (?:outgrown|lost|got over|gotten rid of) my (?P<what>[\w\s-]+?) allergy",
        rf"my (?P<what>[\w\s-]+?) allergy {_CURED}", rf"{_I_AM}{_OFTEN} over my (?P<what>[\w\s-]+?) allergy",
        holds=False, ends=("is allergic to",),
    ),
    *_forms(
        "is", rf"{_I_AM}{_OFTEN} (?:an? )?(?P<what>pregnant|(?:lactose|gluten) intolerant|diabetic|asthmatic|coeliac|"
        rf"celiac|smoker|student|homeless|member of [\w ]+)",
        rf"{_I_AM}{_OFTEN} on (?P<what>(?:parental|sick|maternity|paternity) leave)",
    ),
    *_forms("likes", rf"{_I_AM}{_OFTEN} (?:a (?:big |huge )?fan of|into|fond of|keen on){_WHAT}"),
    *_forms("likes", rf"{_I}{_OFTEN} (?:like|love|enjoy|adore|liking|loving|enjoying){_WHAT}"),
    *_forms(
        "likes", rf"{_I_HAVE}{_OFTEN} (?:grown tired of|gone off|went off|lost my taste for){_WHAT}",
        rf"{_I_AM}{_OFTEN} (?:sick|tired) of{_WHAT}", holds=False,
    ),
    *_forms(
        "has", rf"(?:my|our) (?:new )?(?P<what>{_PET})(?: is{_OFTEN} (?:called|named)|'s name is| is) "
        rf"(?P<name>{_WORD})", is_kind=True,
    ),
    *_forms(
        "has", rf"{_I}{_OFTEN} (?:have|have got) (?:the )?(?P<what>{_ILLNESS})",
        rf"{_I}{_OFTEN} (?:have|own) (?:an?|two|three|four|five|my|our){_WHAT}",
        rf"{_I_HAVE}{_OFTEN} (?:adopted|bought|own|got|have) (?:an?|two|three|my|our){_WHAT}", is_kind=True,
    ),
    # What somebody does
    *_forms(
        "does", rf"(?:{_I_AM}|{_I}){_OFTEN} (?P<of>learning|taking|attending|practi[sc]ing|renting|teaching)"
        rf" (?P<what>[^,;:!?()\n]+?){_HOW_OFTEN}",
        rf"{_I}{_OFTEN} (?P<of>{_DO}){_MUCH} (?P<what>[^,;:!?()\n]+?){_HOW_OFTEN}",
        rf"(?:{_I_AM}|{_I}){_OFTEN} (?P<of>{_PHRASE}) (?:the |an? )?(?P<what>[^,;:!?()\n]+?){_HOW_OFTEN}",
        rf"{_I}{_OFTEN} (?P<of>smok(?:e|ing)|vap(?:e|ing))(?P<any>)(?: (?:a pack|cigarettes|\d+ cigarettes))"
        rf"?{_HOW_OFTEN}",
    ),
    *_forms(
        "does drink", rf"{_I_HAVE}{_OFTEN} {_QUIT} (?P<what>coffee|tea|alcohol|beer|wine|soda)", holds=False,
        ends=("does drink",),
    ),
    *_forms(
        "does eat", rf"{_I_HAVE}{_OFTEN} {_QUIT} (?P<what>meat|fish|sugar|dairy|chocolate)", holds=False,
        ends=("does eat",),
    ),
    *_forms(
        "does smoke", rf"{_I_AM}{_OFTEN} (?:a non-?smoker|smoke-?free)(?P<any>)",
        rf"{_I_HAVE}{_OFTEN} (?:quit|given up|gave up) (?:smoking|cigarettes)(?P<any>)", holds=False,
    ),
    # Ends of what is named, whatever was said of it
    *_forms(
        "has",
        rf"{_I_HAVE}{_OFTEN} {_PARTED} {_MINE}(?P<what>[^,;:!?()\n]+?){_ADJUNCT}",
        rf"{_I_HAVE}{_OFTEN} (?:{_GAVE} {_MINE}(?P<what>[^,;:!?()\n]+?) {_AWAY})",
        rf"{_I_HAVE}{_OFTEN} lost {_MINE}(?P<what>[^,;:!?()\n]+)",
        rf"{_I_HAVE}{_OFTEN} (?:replaced|swapped|exchanged|traded) {_MINE}(?P<what>[^,;:!?()\n]+?) "
        r"(?:with|for|by) (?:an?|the|my) [^,;:!?()\n]+",
        rf"(?:somebody|someone|they) stole {_MINE}(?P<what>[^,;:!?()\n]+)",
        holds=False, is_kind=True, ends=OWNED,
    ),
    *_named("has", rf"{_I_HAVE}{_OFTEN} {_PARTED}{_NAME}{_ADJUNCT}", holds=False, ends=OWNED),
    *_forms("has", rf"{_MINE}(?P<what>[^,;:!?()\n]+?) {_GONE}", holds=False, is_kind=True, ends=(*OWNED, *KEPT)),
    *_forms(
        "has", rf"(?:my|our) (?P<what>(?:{_QUALITY} )*{_PET})(?: (?P<name>{_WORD}))? {_DIED}",
        rf"(?:both|all)(?: of)?(?: my| our| the)? (?P<what>{_PET}s?) {_DIED}", holds=False, is_kind=True,
    ),
    *_forms(
        "has", rf"{_MINE}(?P<what>[\w-]+) (?:(?:has|have) (?:fully |completely )?(?:healed|recovered)|healed|(?:is|"
            rf"are) (?:all )?(?:better|fine|ok(?:ay)?|healed|"
        r"back to normal))",
        rf"{_I_HAVE}{_OFTEN} (?:recovered from|got over|beaten|beat|overcome) (?:{_MINE}|an? )?(?P<what>[\w-]+(?: "
        rf"[\w-]+)?)",
        rf"{_I_AM}{_OFTEN} over {_MINE}(?P<what>[\w-]+(?: [\w-]+)?)",
        holds=False, ends=("has",),
    ),
    *_named(
        "has",
        rf"{_NAMED} (?:{_DIED}|(?:is|was) (?:gone|no more))", rf"{_I_HAVE}{_OFTEN} (?:had to )?put{_NAME} (?:down|to "
            rf"sleep)",
        rf"{_I_HAVE}{_OFTEN} {_GAVE}{_NAME} {_AWAY}",
        rf"{_I_HAVE}{_OFTEN} (?:gave away|given away|rehomed|found a new home for|lost|had to say goodbye to){_NAME}",
        holds=False, ends=("has", *PERSONS),
    ),
    *_named("has boss", rf"{_NAMED} {_LEFT_POST}", holds=False, ends=PERSONS[1:]),
    *_named("has roommate", rf"{_NAMED}(?: has)? moved out", holds=False, ends=("has flatmate", "has partner")),
    *_named(
        "has boss", rf"{_I} (?:no longer (?:see|go to)|(?:don't|do not) (?:see|go to)){_NAME}(?: any\s*more| any "
            rf"longer)?",
        rf"{_NAMED} (?:is no longer|isn't|is not) my (?:{_ONE_SERVICE}|{_PARTNER})(?: any\s*more| any longer)?",
        holds=False, ends=PERSONS,
    ),
    *_named("works for", rf"{_I_HAVE}{_OFTEN} {_LEFT}{_NAME}{_SEASON}", holds=False, ends=("has partner", *KEPT)),
    *_named(
        "lives in", rf"{_I_HAVE}{_OFTEN} left{_NAME} (?:for good|behind|permanently|forever)", holds=False,
        ends=("works for",),
    ),
    *_named(
        "works for", rf"(?:was|is) my (?:last|final) day (?:at|with){_NAME}",
        rf"my (?:last|final) day (?:at|with){_NAME} was [^,;:!?()\n]+",
        rf"{_I_AM}{_OFTEN} (?P<some>no longer (?:at|with|on)|done (?:at|with)){_NAME}", holds=False, ends=KEPT,
    ),
    *_forms(
        "does",
        rf"{_I_HAVE}{_OFTEN} closed (?:my|our) (?P<what>[^,;:!?()\n]+)",
        rf"{_I_HAVE}{_OFTEN} (?:{_ENDED}|closed) (?:my|our|the) (?:account|contract|subscription|membership) (?:with|"
        rf"at|to|for|of)"
        rf" (?:the )?(?P<what>[^,;:!?()\n]+)",
        rf"{_I_HAVE}{_OFTEN} {_ENDED} (?:my|our|the) (?P<what>[^,;:!?()\n]+)",
        rf"{_I_HAVE}{_OFTEN} (?:{_ENDED}|{_QUIT}) (?:{_MINE})?(?P<what>[^,;:!?()\n]+)",
        rf"{_I_AM}{_OFTEN} (?P<some>off|done with|through with|finished with) (?:{_MINE})?(?P<what>[^,;:!?()\n]+)",
        rf"{_I_HAVE}{_OFTEN} {_LEFT} {_MINE}(?P<what>(?:[\w-]+ ){{0,2}}{_GROUP})",
        holds=False, ends=KEPT,
    ),
    *_named("does", rf"{_NAMED} {_GONE}", holds=False, ends=(*OWNED, *KEPT)),
    *_named(
        "does", rf"{_I_HAVE}{_OFTEN} (?:switched|changed|moved|gone|went|transferred|migrated|upgraded|"
        rf"downgraded)(?: my [a-z]+)? from{_NAME} to "
        r"[^,;:!?()\n]+", holds=False, ends=(*OWNED, *PERSONS, *KEPT),
    ),
)  # fmt: skip

_HATE: Final = (
    r"(?:hate|dislike|can't stand|cannot stand|loathe|detest|can't bear|(?:don't|do not)(?: really)? (?:like|love|"
    r"enjoy)|"
    r"no longer (?:like|love|enjoy)|(?:have |'ve )?stopped (?:liking|loving|enjoying))"
)
_MOODS: Final = tuple(
    Mood(words=re.compile(words, re.IGNORECASE), said=said, holds=holds)
    for words, said, holds in (
        (rf"{_I}{_OFTEN} {_HATE}", "i like", False),
        (rf"{_I}{_OFTEN} (?:no longer|don't|do not)(?: really)?", "i", False),
        (rf"{_I_AM}{_OFTEN} (?:no longer|not)(?: really)?", "i'm", False),
        (rf"{_I_HAVE}{_OFTEN} (?:stopped|quit|given up|gave up|ceased)(?= \w+ing\b)", "i", False),
        (
            rf"{_I_HAVE}{_OFTEN} (?:started|begun|began|taken up|took up|gone back to|went back to|returned to)"
            r"(?= \w+ing\b)",
            "i",
            True,
        ),
        (rf"{_I_HAVE}{_OFTEN} (?:come|grown|learn(?:ed|t)) to(?= (?:like|love|enjoy)\b)", "i", True),
    )
)
"""What is before what somebody does, and says that they do so no longer, or now."""

ENGLISH: Final = Language(
    lead=re.compile(_LEAD, re.IGNORECASE),
    tail=re.compile(_TAIL, re.IGNORECASE),
    detail=re.compile(_DETAIL, re.IGNORECASE),
    undone=re.compile(
        r"\b(?:back|return(?:ed)?|left|not|only|but|wrong|lied|lie|wish|think|guess)\b|"
        r"n't(?! (?:take|stand|bear|afford) it)", re.IGNORECASE
    ),
    patterns=_ENGLISH,
    moods=_MOODS,
    no_more=re.compile(r" (?:any\s*more|any longer|at all)$", re.IGNORECASE),
    at_times=re.compile(r"\b(?:today|tonight|yesterday|this|last|recently|instead)\b", re.IGNORECASE),
    starts=re.compile(_STARTS, re.IGNORECASE),
    will=re.compile(r"\b(i|we)(?:'ll| will)(?: be)?\b", re.IGNORECASE),
    speaker=re.compile(rf"{_LEAD}(?:i|we)\b", re.IGNORECASE),
    elided=re.compile(
        r"(?:(?:just|finally|recently|actually) )*(?:moved|started|quit|left|sold|stopped|switched|changed|gave|given|"
        r"adopted|bought|broke|cancell?ed|dropped|lost|joined|resigned|retired|graduated|became|started|got)"
        r"\b", re.IGNORECASE,
    ),
    named=re.compile(
        rf"(?:{_LEAD}(?:(?:the )?{_WORD}(?: {_WORD})?|both [\w ]+|the \w+)(?: has| is| was| got| had|'s)?{_OFTEN} "
        rf"(?:lives|living|based|moved|relocated|works|working|started|changed|left|quit|retired|resigned|died|dead|"
        rf"passed|gone|no|"
        rf"doesn't|does|isn't|over|history|been|sold|stolen|cancell?ed|put|euthani[sz]ed|run|ran|crossed|took|"
        rf"taken|scrap|scrapped|totall?ed|written|closed|to|home|where|expired|lapsed|are|were|fired|replaced|my)\b"
        r"|home is\b|(?:somebody|someone|they) stole my\b|(?:please )?use \S+@)",
        re.IGNORECASE,
    ),
    unnamed=re.compile(
        r"^(?:(?:a|an|the|my|our|some|any|broken|sprained|torn|twisted|injured|sore|bad|"
        r"(?:member|subscription|account|membership) (?:of|to|with|at)|Dr|Mrs?|Ms|Prof)\b\.? ?)+|"
        r"\b(?:membership|subscription|account|allergy|plan|\d+)\b", re.IGNORECASE,
    ),
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
        r"would|might|could|should|want to|wants to|wanted to|hope|hopes|hoping|plans? (?:to|on|for|is to)|planning|"
        r"dream|"
        r"dreamt|dreamed|"
        r"wish|almost|nearly|until|till|once|previously|formerly|earlier|next (?:week|month|year|spring|"
        r"summer|autumn|fall|"
        r"winter|\w+day)|tomorrow|(?<!stopped )(?<!quit )(?<!up )(?<!started )(?<!am )going to|gonna|temporarily|for "
        r"(?:a|the|two|three|some) (?:few )?(?:days?|weeks?|"
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
    clauses=re.compile(r"\s*[,;:]\s+(?:(?:and|but|so) )?|\s+(?:and|but|so) |\s+[-\u2013\u2014]+\s+", re.IGNORECASE),
    changed=re.compile(
        r"\b(?:new|now|nowadays|these days|moved|left|died|dead|sold|gone|quit|stopped|started|became|become|retired|"
        r"fired|"
        r"cancell?ed|switched|changed|replaced|gave|given|lost|broke|divorced|again|stolen|last day)\b", re.IGNORECASE,
    ),
    story=re.compile(
        r"^in (?:the|a|an|my|this|that|one) |^(?:(?:was|were|is) )?(?:found|recovered|rescued|saved)\b|\b(?:say|says|"
        r"said|saying|told|tells|heard|hears|read|reads|wrote|"
        r"writes|dream\w*|"
        r"claims?|claimed|thinks?|thought|asked|asks|when|while|before|after|because|since|as|whether|that|who|which|"
        r"where|"
        r"he|she|they)\b", re.IGNORECASE,
    ),
    aside=re.compile(r"\s*[,;] (?:and )?(?!(?:it|it's|it is)(?: now)? (?:\S+@|(?-i:[A-Z])))(?:it|it's|everything|"
        r"everybody|everyone|"
                     r"they|they're|there's|(?!start|begin)[a-z]+ing|so happy|so excited)\b(?! (?:say|says|seems?|"
                     r"looks?|appears?|claim|think|depends)\b)",
                     re.IGNORECASE),
    one_of_a_kind=frozenset({
        "mother", "father", "wife", "husband", "partner", "girlfriend", "boyfriend", "boss",
        "manager",
    }),
    many_of_a_kind=frozenset({
        "friend", "colleague", "cousin", "aunt", "uncle", "neighbour", "neighbor", "niece", "nephew",
    }),
    relatives={
        "mum": "mother", "mom": "mother", "dad": "father", "grandma": "grandmother", "grandpa": "grandfather",
        "gran": "grandmother", "granny": "grandmother",
    },
    bases=_BASES | _PHRASES | {
        **{f"{each}s": each for each in ("seat", "room", "table", "bed", "pillow", "payment", "unit")},
    },
)  # fmt: skip
