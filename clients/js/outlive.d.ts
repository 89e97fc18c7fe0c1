// Types of outlive.js. Responses, items and events are OpenAI's: give their types as parameters where you have them
// (`import type { Response, ResponseStreamEvent } from "openai/resources/responses/responses"`).

export interface RetryOptions {
  /** Milliseconds before the first retry; doubled for each further one that brings nothing. 250. */
  first?: number;
  /** The longest pause, in milliseconds. 8,000. */
  longest?: number;
  /** Milliseconds without a byte (the server sends a comment every 15 seconds) after which a connection is replaced. 45,000. */
  silence?: number;
  /** Tries in a row that bring nothing before the error is thrown. 60, some six minutes; tries while offline do not count. */
  tries?: number;
}

/** A value, or a function that returns it; the function is asked again, with `true`, once the server refuses the last. */
export type Secret = string | undefined | ((refused: boolean) => string | undefined | Promise<string | undefined>);

export interface OutliveOptions {
  /** The address of the API, with `/v1`. Relative addresses work in browsers only. */
  baseURL?: string;
  /** An API key, for programs. Give pages a ticket. */
  apiKey?: Secret;
  /** A stream ticket: read-only, for one response or one conversation. */
  ticket?: Secret;
  /** Headers of every request. */
  headers?: Record<string, string>;
  fetch?: typeof globalThis.fetch;
  retry?: RetryOptions;
}

export interface RequestOptions {
  signal?: AbortSignal;
}

export interface CreateOptions extends RequestOptions {
  /** The key under which a broken POST is repeated; a new one by default. */
  idempotencyKey?: string;
}

export type StreamState = "connecting" | "streaming" | "reconnecting" | "ended";

export interface StreamOptions extends RequestOptions {
  onState?: (state: StreamState) => void;
}

export interface StreamEvent {
  type: string;
  sequence_number: number;
  [field: string]: any;
}

export interface OutliveResponse {
  id: string;
  object: "response";
  status: "queued" | "in_progress" | "completed" | "incomplete" | "failed" | "cancelled";
  output: any[];
  [field: string]: any;
}

export interface Conversation {
  id: string;
  object: "conversation";
  created_at: number;
  metadata: Record<string, string>;
}

export interface Ticket {
  id: string;
  object: "ticket";
  /** The id of the response or conversation that it opens. */
  target: string;
  created_at: number;
  expires_at: number;
  /** For `new Outlive({ ticket })`, or for an address: `?ticket=`. */
  ticket: string;
}

export interface List<T> {
  object: "list";
  data: T[];
  first_id: string | null;
  last_id: string | null;
  has_more: boolean;
}

export type Query = Record<string, string | number | boolean | null | undefined | Array<string | number>>;

export interface PageQuery extends Query {
  after?: string;
  limit?: number;
  order?: "asc" | "desc";
}

export interface ResponsesQuery extends PageQuery {
  status?: string | string[];
  conversation?: string;
}

/** An error that the server answered with. `status` is 0, and `cause` set, where there was no answer. */
export declare class OutliveError extends Error {
  status: number;
  code: string | null;
  param: string | null;
  type: string | null;
  requestId: string | null;
  /** Seconds. */
  retryAfter: number | null;
}

/** The events of one response over all its connections, each once. */
export declare class EventStream<Event = StreamEvent> implements AsyncIterableIterator<Event> {
  /** The response's id; null until the first event. */
  readonly id: string | null;
  /** The number of the last event delivered. */
  readonly after: number | null;
  readonly ended: boolean;
  /** The position as a string; null while the id is unknown. */
  readonly token: string | null;
  next(): Promise<IteratorResult<Event, undefined>>;
  return(value?: any): Promise<IteratorResult<Event, undefined>>;
  [Symbol.asyncIterator](): this;
}

export declare class Outlive {
  constructor(options?: OutliveOptions);
  readonly retry: Required<RetryOptions>;
  /** True once a server has answered. */
  readonly contacted: boolean;

  /** Create a response, plain or in the background. */
  create<R = OutliveResponse>(body: Record<string, any>, options?: CreateOptions): Promise<R>;
  /** Create a response and iterate over its events. */
  stream<E = StreamEvent>(body: Record<string, any>, options?: CreateOptions & StreamOptions): EventStream<E>;
  /** Iterate over the events of a response, given by its id or by a token. */
  follow<E = StreamEvent>(target: string, options?: StreamOptions & { after?: number | null }): EventStream<E>;
  /** Wait for the end of a response, given by its id or by a token. */
  poll<R = OutliveResponse>(target: string, options?: RequestOptions): Promise<R>;
  retrieve<R = OutliveResponse>(id: string, options?: RequestOptions): Promise<R>;
  cancel<R = OutliveResponse>(id: string, options?: RequestOptions): Promise<R>;
  delete(id: string, options?: RequestOptions): Promise<{ id: string; object: "response"; deleted: boolean }>;
  list<R = OutliveResponse>(query?: ResponsesQuery, options?: RequestOptions): Promise<List<R>>;
  /** The queued and running responses, of one conversation or of all, newest first. */
  running<R = OutliveResponse>(conversation?: string, options?: RequestOptions): Promise<R[]>;
  /** Send a request to any other route. */
  request<T = any>(
    method: string,
    path: string,
    options?: RequestOptions & { body?: unknown; query?: Query; headers?: Record<string, string> },
  ): Promise<T>;
  readonly conversations: {
    create(body?: Record<string, any>, options?: CreateOptions): Promise<Conversation>;
    list(query?: PageQuery, options?: RequestOptions): Promise<List<Conversation>>;
    retrieve(id: string, options?: RequestOptions): Promise<Conversation>;
    delete(id: string, options?: RequestOptions): Promise<{ id: string; object: "conversation.deleted"; deleted: boolean }>;
    items<I = any>(id: string, query?: PageQuery, options?: RequestOptions): Promise<List<I>>;
  };
  /** Tickets of a response or conversation, given by its id. */
  readonly tickets: {
    create(id: string, options?: RequestOptions & { expiresIn?: number }): Promise<Ticket>;
    revoke(id: string, ticketId: string, options?: RequestOptions): Promise<{ id: string; deleted: boolean }>;
  };
}

/** The response so far, made of its events in order. */
export declare class Fold<R = OutliveResponse> {
  add(event: { type: string; [field: string]: any }): this;
  /** Null before the first event. Items grow in place until they are done. */
  readonly response: R | null;
  readonly output: any[];
  /** The text of all messages so far. */
  readonly text: string;
  readonly status: string;
  readonly ended: boolean;
}

/** A position in a stream. */
export interface Position {
  id: string;
  after?: number | null;
  ended?: boolean;
}

/** Return a position as a string, which `outlive.client` (Python) reads too. */
export declare function token(position: Position): string;
/** Return the position that a token holds; throws a TypeError for anything else. */
export declare function parseToken(token: string): Required<Position>;

export declare const TERMINAL_EVENTS: ReadonlySet<string>;
