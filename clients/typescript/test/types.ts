// Checked by `npm run check`: what callers write fits the types, also those of all versions of the AI SDK.
import * as ai6 from "ai";
import * as ai5 from "ai-5";
import * as ai7 from "ai-7";
import { Client, createEvent, type CloudEvent } from "graphweft";
import { graphweftMiddleware } from "graphweft/ai-sdk";

declare const five: Parameters<typeof ai5.wrapLanguageModel>[0]["model"];
declare const six: Parameters<typeof ai6.wrapLanguageModel>[0]["model"];
declare const seven: Parameters<typeof ai7.wrapLanguageModel>[0]["model"];

export const client = new Client({ url: "http://127.0.0.1:8765", token: async () => "token" });
export const middleware = graphweftMiddleware({ client, chatId: "c1", userId: undefined });
void [
  ai5.wrapLanguageModel({ model: five, middleware }),
  ai6.wrapLanguageModel({ model: six, middleware: [middleware] }),
  ai7.wrapLanguageModel({ model: seven, middleware }),
];
export const known: CloudEvent<"tool.call_complete"> = createEvent("tool.call_complete", {
  chatId: "c1",
  data: { tool_name: "refund", success: false, anything: 1n },
});
export const own = createEvent("order.paid", { chatId: "c1", data: { amount: 12 } });
// @ts-expect-error - a tool has a name
export const nameless = createEvent("tool.call_complete", { chatId: "c1", data: { success: true } });
// @ts-expect-error - an event has a chat
export const homeless = createEvent("order.paid", { data: {} });
void client.emitAll([known, own]);
