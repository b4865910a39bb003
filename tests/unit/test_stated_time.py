"""When texts hold by what they say themselves, in English and German."""

from __future__ import annotations

from typing import Final

import pytest

from graphweft_workers.retrieval.stated_time import ALWAYS, StatedTime, stated_time

SAID: Final = "2026-12-02T10:00:00.000000Z"  # a Wednesday


@pytest.mark.parametrize(
    ("text", "begins", "ends"),
    [
        ("I'm in Rome until Friday.", "", "2026-12-04"),
        ("My discount code is SPRING20 until Friday.", "", "2026-12-04"),
        ("I am staying with my sister for two weeks.", "", "2026-12-16"),
        ("My trial ends on 15 December.", "", "2026-12-15"),
        ("My trial ends on December 15th.", "", "2026-12-15"),
        ("my trial ends Friday", "", "2026-12-04"),
        ("My trial expires in two weeks.", "", "2026-12-16"),
        ("I'm in Rome this week.", "", "2026-12-06"),
        ("From March I'll work at Globex.", "2027-03-01", ""),
        ("From March on, I will live in Bergen.", "2027-03-01", ""),
        ("I'm in Rome next week.", "2026-12-07", "2026-12-13"),
        ("I work from home until the end of the month.", "", "2026-12-31"),
        ("Ben covers my clients until the end of March.", "", "2027-03-31"),
        ("I'm sick today.", "", "2026-12-02"),
        ("We have a rental car for the next 7 days.", "", "2026-12-09"),
        ("Ich bin bis Freitag in Rom.", "", "2026-12-04"),
        ("Ich bin zwei Wochen lang in Rom.", "", "2026-12-16"),
        ("Ich wohne für zwei Wochen bei meiner Schwester.", "", "2026-12-16"),
        ("Mein Probeabo endet am 15. Dezember.", "", "2026-12-15"),
        ("Mein Probeabo läuft am Freitag ab.", "", "2026-12-04"),
        ("Ich bin diese Woche in Rom.", "", "2026-12-06"),
        ("Ab März arbeite ich bei Globex.", "2027-03-01", ""),
        ("Nächste Woche bin ich in Berlin.", "2026-12-07", "2026-12-13"),
        ("Bis Ende Dezember arbeite ich von zu Hause.", "", "2026-12-31"),
        ("Der Gutschein gilt bis 31.1.2027.", "", "2027-01-31"),
        ("Ich bin heute krank.", "", "2026-12-02"),
        ("Hi! I'm in Rome this week.", "", "2026-12-06"),
        ("The Friday code is 4711, valid until 20.12.", "", "2026-12-20"),
        ("I'll move to Bergen in March.", "2027-03-01", ""),
        ("Ich ziehe im März nach Bergen.", "2027-03-01", ""),
        ("My new job starts on Monday.", "2026-12-07", ""),
        ("My new job starts next Monday.", "2026-12-07", ""),
        ("The offer lasts ten days.", "", "2026-12-12"),
        ("Until the end of the year our budget is 5000 euros.", "", "2026-12-31"),
        ("My visa is valid until June 2027.", "", "2027-06-30"),
        ("I'm away until next Friday.", "", "2026-12-11"),
        ("The keys are with Anna over the weekend.", "2026-12-05", "2026-12-06"),
        ("Until the 18th, Ben is on call.", "", "2026-12-18"),
        ("I'm on parental leave for three months.", "", "2027-03-02"),
        ("Estoy en Roma hasta el viernes.", "", "2026-12-04"),
        ("Mi prueba termina el 22 de diciembre.", "", "2026-12-22"),
        ("La oficina está cerrada hasta finales de enero.", "", "2027-01-31"),
        ("Hola. Esta semana estoy en Sevilla.", "", "2026-12-06"),
        ("A partir de enero trabajo en Initech.", "2027-01-01", ""),
        ("Je suis à Rome jusqu'à vendredi.", "", "2026-12-04"),
        ("Mon essai se termine le 22 décembre.", "", "2026-12-22"),
        ("Le bureau est fermé jusqu'à la fin du mois.", "", "2026-12-31"),
        ("Bonjour. Cette semaine je suis à Lyon.", "", "2026-12-06"),
        ("À partir de janvier je travaille chez Initech.", "2027-01-01", ""),
    ],
)
def test_a_text_holds_for_the_days_that_it_names(text: str, begins: str, ends: str) -> None:
    assert stated_time(text, SAID) == StatedTime(begins=begins, ends=ends)


@pytest.mark.parametrize(
    "text",
    [
        "I was in Rome until Friday.",
        "I have lived here for two weeks.",
        "I've been sick for a week.",
        "I live in Oslo.",
        "I work Monday through Friday.",
        "I work until 5.",
        "We went hiking this week.",
        "Ich war zwei Wochen in Rom.",
        "Ich wohne seit zwei Wochen in Rom.",
        "Mein Sohn ist zwei Jahre alt.",
        "My son is two years old.",
        "I'm in Rome this week. My phone is broken.",
        "I run every week for two days.",
        "From March I'll work at Globex. My phone is broken.",
        "Ich habe zwei Wochen in Rom gelebt.",
        "I may go to Rome.",
        "Where am I this week?",
        "The museum is closed until Friday, so we go to the zoo.",
        "Me gusta el café por la mañana.",
        "Mi hermana vive en Madrid desde 2019.",
        "El lunes fui al dentista.",
        "Trabajé en Acme hasta junio.",
        "Viví en París durante dos años.",
        "Los domingos como con mis padres.",
        "Mi cumpleaños es el 14 de mayo.",
        "Nací el 3 de abril de 1990.",
        "Mi hijo tiene dos años.",
        "El año pasado estuve en Chile.",
        "Quiero aprender francés este año.",
        "He vivido en Lima hasta hace poco.",
        "Tengo tres semanas de vacaciones al año.",
        "Mi contrato empezó en enero.",
        "Trabajo hasta las seis.",
        "Siempre voy al mercado el sábado.",
        "Me mudo a Valencia la próxima semana.",
        "Empiezo un curso en marzo.",
        "Mi hermano se casó el sábado pasado.",
        "Estudié hasta el viernes para el examen.",
        "Compré un coche esta semana.",
        "Esta semana he leído dos libros.",
        "Hoy compré pan.",
        "Hoy fui al médico.",
        "Tardé dos semanas en terminarlo.",
        "Estoy en Roma hasta el viernes y vivo en Oslo.",
        "Vivo en Oslo. Estoy en Roma hasta el viernes.",
        "Nunca trabajo los viernes.",
        "Mi abuela murió en agosto.",
        "J'aime le café le matin.",
        "Ma sœur habite à Paris depuis 2019.",
        "Lundi je suis allé chez le dentiste.",
        "J'ai travaillé chez Acme jusqu'en juin.",
        "J'ai habité à Paris pendant deux ans.",
        "Le dimanche je mange chez mes parents.",
        "Mon anniversaire est le 14 mai.",
        "Je suis né le 3 avril 1990.",
        "Mon fils a deux ans.",
        "L'année dernière j'étais au Chili.",
        "Je veux apprendre l'espagnol cette année.",
        "J'ai vécu à Lima jusqu'à vendredi.",
        "J'ai trois semaines de vacances par an.",
        "Mon contrat a commencé en janvier.",
        "Je travaille jusqu'à six heures.",
        "Je vais toujours au marché le samedi.",
        "Je déménage à Lyon la semaine prochaine.",
        "Je commence un cours en mars.",
        "Mon frère s'est marié samedi dernier.",
        "Nous avons dormi à l'hôtel jusqu'à jeudi.",
        "J'ai acheté une voiture cette semaine.",
        "Cette semaine j'ai lu deux livres.",
        "Aujourd'hui j'ai acheté du pain.",
        "J'ai mis deux semaines à le finir.",
        "Je suis à Rome jusqu'à vendredi et j'habite à Oslo.",
        "J'habite à Oslo. Je suis à Rome jusqu'à vendredi.",
        "Le film sort vendredi.",
        "Ma grand-mère est morte en août.",
        "Elle avait un chat pendant dix ans.",
        "My son this week goes to camp.",
        "Es ist mai.",
        "We saw Mars until Friday's clouds came.",
        "I ate 3 Mars bars this week.",
        'The message said "once".',
        "I have to finish before mardi gras.",
        "I'm in Rome until Friday. " + "The weather is fine. " * 20,
        "",
    ],
)
def test_what_is_past_or_a_habit_or_tells_more_has_no_end(text: str) -> None:
    assert stated_time(text, SAID) == ALWAYS


@pytest.mark.parametrize("said", ["", "yesterday", "9999-12-31T10:00:00Z"])
def test_a_time_that_is_no_day_or_the_last_one_gives_no_end(said: str) -> None:
    assert stated_time("I'm in Rome until tomorrow.", said) == ALWAYS


def test_days_count_from_the_day_on_which_it_was_said() -> None:
    assert stated_time("I'm in Rome until 29 February.", "2026-03-01").ends == "2028-02-29"
    assert stated_time("I'm in Rome for a month.", "2026-01-31").ends == "2026-02-28"
    assert stated_time("I'm in Rome until Wednesday.", SAID).ends == "2026-12-09", "not the day itself"
    assert stated_time("I'm in Rome until the weekend.", "2026-12-06").ends == "2026-12-06", "a Sunday"
