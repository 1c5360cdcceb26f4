// Package plan decides what is to be done for a Task: from what was observed
// and the time it makes a Plan, and does nothing else. It takes no client,
// context, clock or logger, so that its tests are tables and read as the
// specification.
//
// A Task's pods are attempts, numbered from 1. At most one attempt is active
// (it has no outcome yet), and a new one is made only when every pod of the
// former ones has finished or is gone. What the task is to do next follows
// from three things: the operation that is in progress, spec.operatingMode,
// and how the last attempts ended.
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
// A rewind may be asked for in every state. A running task is stopped for it
// (Suspending's way: its pod ends with a checkpoint) and its next pod carries
// it out before the agent starts. For a suspended or finished task the pod
// ends when the rewind is done; a finished task is then Rewound, and waits for
// a resume. A rewind that fails changes nothing: the task goes on as it was.
//
// Drift (the worktree was changed while the task slept) stops a task with the
// reason DriftDetected until a resume or rewind says what to do about it.
//
// Each transition is one entry of status.history, in the same status that the
// transition shows in. Entries leave the list only when the history store has
// them; when too many wait, transitions wait too.
package plan
