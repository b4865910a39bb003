"""The language of a text, by its script and its function words: which stemmer fits, and what is a stop word. Pure.

A text of one language holds function words of it. So no model is needed, and a text without any ("Zürich?") has none:
its words have only the terms that words of any language have. A script that is that of one language (Greek, Hebrew), or
whose languages share endings (Cyrillic), tells without function words.

The words that languages of one script share with English ("was", "die", "no") count for each of them; English must have
fewer. Lists of stop words in packages hold hundreds of words with a topic ("year", "city"), so these are our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

_ENGLISH: Final = """
a about all also am an and any are as at be because been being but by can could did do does doing for from had
has have having he her here hers him his how i if in into is it its just me more most my no nor not of on once
only or other our ours out over own s same she should so some such t than that the their theirs them then there
these they this those through to too under until up very was we were what when where which while who whom why
will with would you your yours
"""
ENGLISH_STOP_WORDS: Final = frozenset(_ENGLISH.split())

_OF_LATIN: Final[Mapping[str, str]] = {
    "german": """
        der die das den dem des ein eine einen einem einer eines und oder aber
        nicht kein keine keinen ich du er sie es
        wir ihr mich mir dich dir uns euch ihn ihm ihnen mein meine meinen
        meinem meiner dein deine deinen sein seine
        ist sind war waren bin bist habe hast hat haben hatte wird werden wurde
        kann will soll zu zum zur mit von vom
        für auf aus bei nach über unter vor im am an in als wie wo wer was wann
        warum welche welcher welches dass wenn
        auch noch nur schon sehr so es gibt sich man
    """,
    "french": """
        le la les un une des du de et ou mais ne pas je tu il elle on nous vous
        ils elles me te se moi toi mon ma mes
        ton ta tes son sa ses notre nos votre vos leur leurs ce cet cette ces
        que qui quoi où quand comment pourquoi
        quel quelle quels quelles est sont suis es était ai as avons avez ont à
        au aux en dans sur sous avec pour par
        chez sans plus très aussi y c j l d m n s t qu si comme
    """,
    "spanish": """
        el la los las un una unos unas y o pero no yo tú él ella nosotros ellos
        ellas me te se nos le les mi mis tu tus
        su sus es son soy eres era fue está estoy están he ha han hay que qué
        quién quien cuál cuándo cuando dónde donde
        cómo como por para con sin de del al en a sobre muy más también este
        esta estos ese esa eso esto lo si
    """,
    "portuguese": """
        o a os as um uma uns umas e ou mas não eu tu ele ela nós eles elas você
        me te se nos lhe meu minha meus minhas
        teu tua seu sua seus suas é são sou era foi está estou tem tenho há que
        quem qual quando onde como por para com
        sem de do da dos das no na nos nas em ao à muito mais também este esta
        esse essa isso isto se
    """,
    "italian": """
        il lo la i gli le un uno una e o ma non io tu lui lei noi voi loro mi ti
        si ci vi mio mia miei mie tuo tua suo
        sua è sono sei era ho hai ha hanno che chi cosa quale quando dove come
        perché per con senza di del della dello
        dei degli delle a al alla allo ai agli alle da dal dalla in nel nella
        nei nelle su sul sulla più molto anche
        questo questa quello quella c l d
    """,
    "dutch": """
        de het een en of maar niet geen ik jij je hij zij ze wij we jullie mij
        me hem haar ons hen mijn jouw zijn onze
        is ben bent was waren heb hebt heeft hebben had wordt worden kan wil zal
        te van voor met op in aan uit bij naar
        over onder om als dat die dit deze wat wie waar wanneer hoe waarom welke ook nog al zeer er
    """,
    "swedish": """
        den det de en ett och eller men inte jag du han hon vi ni mig dig honom
        henne oss min mitt mina din ditt dina
        sin sitt sina hans hennes är var har hade blir kan ska vill att som på i
        av för med till från om under över hos
        vad vem var när hur varför vilken vilket här där också bara mycket
    """,
    "danish": """
        den det de en et og eller men ikke jeg du han hun vi mig dig ham hende
        os min mit mine din dit dine sin sit hans
        hendes er var har havde bliver kan skal vil at som på i af for med til
        fra om under over hos hvad hvem hvor
        hvornår hvordan hvorfor hvilken her der også kun meget
    """,
    "norwegian": """
        den det de en et ei og eller men ikke jeg du han hun vi meg deg ham
        henne oss min mitt mine din ditt dine sin
        sitt hans hennes er var har hadde blir kan skal vil å som på i av for
        med til fra om under over hos hva hvem
        hvor når hvordan hvorfor hvilken her der også bare mye
    """,
    "finnish": """
        minä sinä hän me te he minun sinun hänen meidän minua minulla minulle on
        ovat olen olet oli olivat ei en et
        eivät ja tai mutta että jos kun kuin se ne tämä tuo mikä mitä kuka missä
        milloin miten miksi mihin myös vain
        niin hyvin
    """,
    "turkish": """
        ben sen o biz siz onlar benim senin onun bizim beni bana sana bir bu şu
        ve veya ama fakat ile için gibi kadar
        çok daha en de da mi mı mu mü ne kim nerede nereye ne zaman nasıl neden
        hangi var yok değil ki olarak oldu
    """,
    "polish": """
        ja ty on ona my wy oni mnie mi ciebie go jej jest są jestem był była
        było mam ma mój moja moje twój swój i oraz
        lub ale nie tak że czy co kto gdzie kiedy jak dlaczego który która które
        w we na z ze do od dla o po przy się to
        ten ta tego tej już tylko też bardzo
    """,
    "czech": """
        já ty on ona my vy oni mě mi tě ho je jsou jsem byl byla bylo mám má můj
        moje tvůj svůj a i nebo ale ne že co
        kdo kde kdy jak proč který která které v ve na z ze do od pro o po při
        se si to ten ta už jen také velmi
    """,
    "romanian": """
        eu tu el ea noi voi ei ele mă mi te îl o meu mea mei mele tău ta său sa
        un o unei unui și sau dar nu este e sunt
        era am ai are au că care ce cine unde când cum cât de la în din pe cu
        fără pentru prin mai foarte și acest
        această acel
    """,
    "hungarian": """
        én te ő mi ti ők az a egy és vagy de nem van vannak vagyok volt voltak
        hogy ha mint ez ezt azt aki ami mi ki hol
        hova mikor hogyan miért melyik meg is már csak nagyon engem nekem
    """,
    "indonesian": """
        saya aku kamu anda dia kami kita mereka yang dan atau tetapi tidak bukan
        adalah di ke dari untuk dengan pada
        ini itu apa siapa mana kapan bagaimana mengapa sudah akan sangat juga
    """,
    "vietnamese": """
        tôi bạn anh chị em nó chúng ta của và hoặc nhưng không là có ở tại trong
        với cho từ đến này đó gì ai đâu khi nào
        thế sao các những một rất cũng được đã đang sẽ
    """,
}  # fmt: skip
_OF_SCRIPT: Final[Mapping[str, str]] = {
    "russian": """
        я ты он она оно мы вы они меня мне тебя тебе его ему её ей нас нам вас
        вам их мой моя моё мои моего моей моём
        твой твоя свой и а но или не нет да есть был была было были что кто где
        куда когда как почему какой какая какие
        который в во на с со к ко о об от до из за по у для при над под это этот
        эта эти тот та же ли бы уже ещё только
        очень так мене мені ти він вона ми ви вони його її мій моє мої та або
        але ні є був була що хто де коли як чому
        який яка які у від із це цей ця ці вже ще тільки дуже
    """,
    "greek": """
        ο η το οι τα του της των τον την τους τις ένα ένας μια μία και ή αλλά
        δεν μην εγώ εσύ αυτός αυτή αυτό εμείς με σε
        μου σου μας σας είναι είμαι ήταν έχω έχει έχουν που ποιος ποια τι πού
        πότε πώς γιατί να θα για από στο στη στην
        στον στα ως πολύ
    """,
    "arabic": """
        أنا انا أنت انت هو هي نحن هم في من إلى الى على عن مع و أو او لكن لا ما
        لم لن هل أن ان إن هذا هذه ذلك تلك التي
        الذي كان كانت يكون ماذا متى أين اين كيف لماذا كم قد جدا أي
    """,
    "persian": """
        من تو او ما شما آنها ایشان این آن و یا اما که از در به با برای تا را است
        هست بود هستم هستند نیست می چه کی کجا چرا
        چگونه چطور خیلی هم
    """,
    "hebrew": """
        אני אתה את הוא היא אנחנו אתם הם הן שלי שלך שלו שלה של על אל עם בין או
        אבל לא כן יש אין היה הייתה זה זאת זו מה מי
        איפה היכן מתי איך למה איזה כי אם גם רק מאוד לי לך
    """,
    "hindi": """
        मैं मैंने मुझे मेरा मेरी मेरे तुम तुम्हारा आप आपका आपकी वह वे यह ये हम
        हमारा उस उसका उसकी इस है हैं हूँ हूं हो था थी थे का की के को में से पर
        ने और या लेकिन नहीं न क्या कौन कहाँ कहां कब कैसे क्यों कौनसा कितना कि जो तो भी ही बहुत एक
    """,
    "tamil": """
        நான் நீ அவர் அவன் அவள் நாம் என் எனது உன் ஒரு இது அது மற்றும் அல்லது
        இல்லை என்ன யார் எங்கே எப்போது எப்படி ஏன்
    """,
    "armenian": "ես դու նա մենք դուք նրանք իմ քո և կամ բայց չէ է եմ ին որ ինչ ով որտեղ երբ ինչպես ինչու",
}  # fmt: skip
_WORDS: Final = {name: frozenset(words.split()) for name, words in (*_OF_LATIN.items(), *_OF_SCRIPT.items())}
_LANGUAGES: Final[dict[str, tuple[str, ...]]] = {}
for _name, _words in (("", ENGLISH_STOP_WORDS), *((name, _WORDS[name]) for name in _OF_LATIN)):
    for _word in _words:
        _LANGUAGES[_word] = (*_LANGUAGES.get(_word, ()), _name)
_SCRIPTS: Final = (
    ("\u0370", "\u03ff", "greek"), ("\u1f00", "\u1fff", "greek"), ("\u0400", "\u052f", "russian"),
    ("\u0530", "\u058f", "armenian"), ("\u0590", "\u05ff", "hebrew"), ("\u0600", "\u06ff", "arabic"),
    ("\u0900", "\u097f", "hindi"), ("\u0b80", "\u0bff", "tamil"),
)  # fmt: skip
_PERSIAN: Final = frozenset("\u067e\u0686\u0698\u06af\u06cc\u06a9")
_LETTERS: Final = {
    "\u0131": "turkish", "\u011f": "turkish", "\u0142": "polish", "\u0105": "polish", "\u0119": "polish",
    "\u0151": "hungarian", "\u0171": "hungarian", "\u0159": "czech", "\u011b": "czech", "\u016f": "czech",
    "\u0103": "romanian", "\u021b": "romanian", "\u01a1": "vietnamese", "\u01b0": "vietnamese",
}  # fmt: skip
"""Letters that tell a language as a function word does. Romanian and Vietnamese share one."""
_WITHOUT_STEMMER: Final = frozenset({"", "vietnamese", "hebrew"})
READ: Final = 60
"""Words of a text that tell its language."""


def latin_language(words: Iterable[str]) -> tuple[str, bool]:
    """Return the language of the words in Latin letters of a text, empty for English and in doubt; and if it is sure.

    One word that may be English ("hat", "war", "son") is not sure. It then chooses a stemmer, which adds terms, but
    stops no word.
    """
    counts: Counter[str] = Counter()
    known: set[str] = set()
    for word in set(words):
        for name in _LANGUAGES.get(word, ()):
            counts[name] += 1
            known.add(word)
        if not word.isascii():
            counts.update({_LETTERS[letter] for letter in word if letter in _LETTERS})
    english = counts.pop("", 0)
    most = max(counts.values(), default=0)
    if most <= english:
        return "", False
    found = next(name for name in _OF_LATIN if counts[name] == most)
    return found, most > 1 or any(not word.isascii() for word in known & _WORDS[found])


def language_of(word: str, latin: str) -> str:
    """Return the language of a word of a text whose words in Latin letters are of the language ``latin``."""
    first = word[:1]
    if first < "\u0370" or "\u1e00" <= first <= "\u1eff":
        return latin
    for begin, end, name in _SCRIPTS:
        if begin <= first <= end:
            return "persian" if name == "arabic" and not _PERSIAN.isdisjoint(word) else name
    return ""


def stemmer_of(language: str) -> str | None:
    """Return Snowball's name of the stemmer of a language; None without one, and for English."""
    return None if language in _WITHOUT_STEMMER else language


def is_function_word(word: str, language: str) -> bool:
    """Tell whether a word has no topic in a language. Of Arabic letters, those of both languages have none."""
    if language in {"arabic", "persian"}:
        return word in _WORDS["arabic"] or word in _WORDS["persian"]
    return word in _WORDS.get(language, ())
