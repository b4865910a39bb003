/** Keeps the order of the events of each chat. */

/** Runs work for chats: what is given for a chat begins when all work given for it before has ended. */
export class ChatOrder {
  readonly #last = new Map<string, Promise<void>>();

  /** Run `work` after all earlier work for these chats. Its failure does not stop later work. */
  run<T>(chats: Iterable<string>, work: () => Promise<T>): Promise<T> {
    const keys = new Set(chats);
    const before = [...keys].flatMap((key) => this.#last.get(key) ?? []);
    const result = Promise.all(before).then(work);
    const ended = result.then(
      () => undefined,
      () => undefined,
    );
    for (const key of keys) this.#last.set(key, ended);
    void ended.then(() => {
      for (const key of keys) if (this.#last.get(key) === ended) this.#last.delete(key);
    });
    return result;
  }
}
