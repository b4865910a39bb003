/** The trace that events and requests belong to: that of the program's current span, if it makes spans with OpenTelemetry. */

/** A span, in the form of W3C Trace Context. */
export interface Trace {
  readonly traceparent: string;
  readonly tracestate?: string;
}

/**
 * Where every copy of `@opentelemetry/api` 1.x registers, and its key of the current span. They are the same for all
 * copies, so that a library need not import the one that the program uses.
 */
const API = Symbol.for("opentelemetry.js.api.1");
const SPAN = Symbol.for("OpenTelemetry Context Key SPAN");
const TRACE_ID = /^(?!0{32})[0-9a-f]{32}$/;
const SPAN_ID = /^(?!0{16})[0-9a-f]{16}$/;
const LONGEST_STATE = 512;

interface SpanContext {
  traceId: string;
  spanId: string;
  traceFlags: number;
  traceState?: { serialize(): string };
}

interface Registered {
  context?: { active(): { getValue(key: symbol): { spanContext(): SpanContext } | undefined } };
}

/** Return the program's current span; nothing if it makes no spans. Never throws. */
export function currentTrace(): Trace | undefined {
  const found = (globalThis as unknown as Record<symbol, Registered | undefined>)[API];
  if (found?.context === undefined) return undefined;
  try {
    const span = found.context.active().getValue(SPAN)?.spanContext();
    if (span === undefined || !TRACE_ID.test(span.traceId) || !SPAN_ID.test(span.spanId)) return undefined;
    const flags = (span.traceFlags & 1).toString(16).padStart(2, "0");
    const traceparent = `00-${span.traceId}-${span.spanId}-${flags}`;
    const tracestate = span.traceState?.serialize();
    return tracestate && tracestate.length <= LONGEST_STATE ? { traceparent, tracestate } : { traceparent };
  } catch {
    return undefined;
  }
}
