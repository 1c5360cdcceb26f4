// Package plan decides what to do for a Task: it computes a Plan from what was
// observed and the current time, and has no side effects. It takes no client,
// context, clock or logger, so that its tests are tables and read as the
// specification.
//
// A Task's pods are attempts, numbered from 1. At most one attempt is active
// (it has no outcome yet), and a new one is made only when every pod of the
// earlier ones has finished or is gone. What the task does next follows from
// three things: the operation in progress, spec.operatingMode, and how the
// last attempts ended.
//
//	            ┌────────────────────────── resume ─────────────────────────┐
//	            │                                                           │
//	apply ──► Preparing ──► Running ──► Completing ──► Completed ──┐        │
//	            ▲  │           │  │                                │        │
//	  pod lost, │  │ blocked   │  │ exit ≠ 0                       │ rewind │
//	  retry,    │  ▼           │  ▼                                ▼        │
//	  Running   │ failed ◄──── │ Retrying (up to backoffLimit)   Rewinding  │
//	            │   │          │                                   │        │
//	            │   └──────────┼─────────── rewind ───────────────►│        │
//	            │              │ operatingMode: Suspended          ▼        │
//	            │              ▼                                Rewound ────┤
//	            └──────── Suspending ──► Suspended ─────────────────────────┘
//
// A rewind may be requested in every state. A running task is stopped first, as
// for a suspension (its pod ends with a checkpoint), and its next pod runs the
// rewind before the agent starts. For a suspended or finished task the pod
// ends when the rewind is done; a finished task is then Rewound, and waits for
// a resume. A rewind that fails changes nothing: the task continues as before.
//
// A limit of the spec, such as deadlineSeconds, stops a running agent as a suspension does. The task
// has then failed, and a resume with a higher limit continues it.
//
// Drift (the worktree was changed while no pod of the task ran) stops a task
// with the reason DriftDetected until a resume or rewind says how to handle it.
//
// Each transition is one entry of status.history, written in the same status
// update as the transition itself. Entries leave the list only when the history
// store has them; when too many are waiting, transitions wait too.
//
// In this package, methods of the decision that are named as nouns, adjectives or
// participles are queries and change nothing. Methods named as verbs act on the
// plan or the status.
package plan
