package historyapi_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/historyapi"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// archive stands in for the store, and records its calls.
type archive struct {
	// imports counts the imports that were begun.
	imports atomic.Int64

	searched  history.SearchQuery
	listed    history.TaskQuery
	hits      []history.SearchHit
	tasks     []history.TaskSummary
	snapshots []history.Snapshot
	lines     []history.ExportLine
	imported  []history.ExportLine
	events    []history.Event
	claimed   []string
	formers   []string // of the task that is deleted
	deleted   []string
	pending   bool // no checkpoint is in the gitstore yet
	state     history.TaskState
	rewound   string // the newest rewind's id
	integrity map[int64]history.Integrity
	branches  map[int64]string // of checkpoints that are not on main
	turns     map[int64]int64  // messages of the turns that had begun when checkpoints were taken
	makers    map[string]*history.MadeBy
	// Errors to return.
	export, claim, remove, record error
	// removing is the task that is deleted although remove is set.
	removing history.Task
}

// newArchive has three tasks, two of them with the name a.
func newArchive() *archive {
	state := history.TaskState{Position: history.Position{Branch: "main", Position: 9},
		Totals: history.Totals{Messages: 9, ToolCalls: 3, InputTokens: 1000, OutputTokens: 100, CostMicroUSD: 70}}
	summary := func(name, uid string, age int, messages int64) history.TaskSummary {
		return history.TaskSummary{
			Task: history.Task{Namespace: "team", Name: name, UID: uid}, State: "Completed", Preview: "do it",
			Created: noon.Add(-time.Duration(age) * time.Hour), Updated: noon, Totals: history.Totals{Messages: messages, CostMicroUSD: 1500}, Checkpoints: 2,
		}
	}
	return &archive{state: state, tasks: []history.TaskSummary{summary("a", "old", 3, 1), summary("a", "new", 2, 9), summary("ab", "other", 1, 3)}}
}

func (s *archive) Search(_ context.Context, query history.SearchQuery) (history.SearchPage, error) {
	s.searched = query
	return history.SearchPage{Hits: s.hits, More: len(s.hits) > 0 && query.After == history.SearchKey{}, Next: history.SearchKey{Rank: 0.5, Message: 7}}, nil
}

// Tasks returns two tasks per page.
func (s *archive) Tasks(_ context.Context, query history.TaskQuery) (history.TaskPage, error) {
	s.listed = query
	var page history.TaskPage
	for i, task := range s.tasks {
		if !strings.HasPrefix(task.Name, query.NamePrefix) || int64(i) < query.After.Number {
			continue
		}
		if len(page.Tasks) == 2 {
			page.More, page.Next = true, history.TaskKey{Number: int64(i)}
			break
		}
		page.Tasks = append(page.Tasks, task)
	}
	return page, nil
}

func (s *archive) MadeBy(_ context.Context, task history.Key) (*history.MadeBy, error) {
	return s.makers[task.UID], nil
}

func (s *archive) SnapshotsAfter(_ context.Context, uid string, after int64, limit int) ([]history.Snapshot, error) {
	if uid != "new" {
		return nil, fmt.Errorf("asked for the task %s", uid)
	}
	rest := s.snapshots[min(int(after), len(s.snapshots)):]
	return rest[:min(limit, len(rest))], nil
}

func (s *archive) ResolvePosition(_ context.Context, uid string, q history.PositionQuery) (history.Resolved, error) {
	if uid != "new" || q.Message > 9 {
		return history.Resolved{}, fmt.Errorf("%w: message %d of %s", history.ErrInvalid, q.Message, uid)
	}
	asked := q.Message
	if q.Back > 0 {
		asked = 9 - q.Back
	}
	if !q.Time.IsZero() {
		asked = 6
	}
	found := history.Resolved{Position: history.Position{Branch: "main", Position: asked - 1}, Asked: asked, Snapped: true}
	if !q.Time.IsZero() {
		found.Elsewhere = 4
	}
	if c := (history.Checkpoint{Number: 2, Time: noon.Add(2 * time.Minute), Position: history.Position{Position: 3}}); q.Counts(c.Time) {
		found.Checkpoint = &c
	}
	return found, nil
}

// commitOf is the commit of a checkpoint. For the number 0 it is what the task started from,
// or, of a fork, the commit of the source.
func commitOf(uid string, number int64) string {
	if number == 0 && uid != "other" {
		return "base"
	}
	return fmt.Sprintf("%s-%d", uid, number)
}

// Checkpoint knows two checkpoints of every task.
func (s *archive) Checkpoint(_ context.Context, task history.Key, number int64) (history.Checkpoint, error) {
	if task.Namespace != "team" || number < 1 || number > 2 {
		return history.Checkpoint{}, fmt.Errorf("%w: checkpoint %d", history.ErrNotFound, number)
	}
	return history.Checkpoint{
		TaskUID: task.UID, Number: number, Integrity: s.integrity[number], Time: noon.Add(time.Duration(number) * time.Minute), Durable: !s.pending,
		Commit: commitOf(task.UID, number), Parent: commitOf(task.UID, number-1), Base: "base", Position: history.Position{Branch: cmp.Or(s.branches[number], "main"), Position: 4 * number},
		Totals: history.Totals{Messages: 4 * number, ToolCalls: number, InputTokens: 100 * number, OutputTokens: 10 * number, CostMicroUSD: 7 * number},
	}, nil
}

// CheckpointBoundary is where a checkpoint was taken, less the messages of a turn that had begun.
func (s *archive) CheckpointBoundary(ctx context.Context, task history.Key, number int64) (history.Position, history.Totals, error) {
	c, err := s.Checkpoint(ctx, task, number)
	c.Position.Position -= s.turns[number]
	c.Totals.Messages -= s.turns[number]
	return c.Position, c.Totals, err
}

func (s *archive) CheckpointsAfter(ctx context.Context, uid string, after int64, limit int) ([]history.Checkpoint, error) {
	var found []history.Checkpoint
	for n := after + 1; n <= 2 && len(found) < limit; n++ {
		c, err := s.Checkpoint(ctx, history.Key{Namespace: "team", UID: uid}, n)
		if err != nil {
			return nil, err
		}
		found = append(found, c)
	}
	return found, nil
}

func (s *archive) CheckpointsBefore(ctx context.Context, task history.Key, before int64, limit int) ([]history.Checkpoint, error) {
	if before == 0 || before > 3 {
		before = 3
	}
	var found []history.Checkpoint
	for n := before - 1; n > 0 && len(found) < limit; n-- {
		c, err := s.Checkpoint(ctx, task, n)
		if err != nil {
			return nil, err
		}
		found = append(found, c)
	}
	return found, nil
}

func (s *archive) Export(_ context.Context, namespace, name, uid string, write func(history.ExportLine) error) error {
	for i, line := range s.lines {
		if s.export != nil && i == len(s.lines)/2 {
			return s.export
		}
		if err := write(line); err != nil {
			return err
		}
	}
	return nil
}

func (s *archive) Import(_ context.Context, namespace, _ string, lines iter.Seq2[history.ExportLine, error]) (history.Task, error) {
	s.imports.Add(1)
	for line, err := range lines {
		if err != nil {
			return history.Task{}, err
		}
		s.imported = append(s.imported, line)
	}
	if len(s.imported) == 0 {
		return history.Task{}, fmt.Errorf("%w: nothing to import", history.ErrInvalid)
	}
	if slices.ContainsFunc(s.tasks, func(t history.TaskSummary) bool { return t.UID == "imported" }) {
		return history.Task{}, fmt.Errorf("%w: a task with the UID imported", history.ErrExists)
	}
	task := history.Task{Namespace: namespace, Name: "c", UID: "imported"}
	s.tasks = append(s.tasks, history.TaskSummary{Task: task})
	return task, nil
}

func (s *archive) ClaimDeletion(_ context.Context, uid string) ([]string, error) {
	s.claimed = append(s.claimed, uid)
	return s.formers, s.claim
}

func (s *archive) DeleteTask(_ context.Context, uid string) (history.Deleted, error) {
	if s.remove != nil {
		return history.Deleted{Task: s.removing}, s.remove
	}
	s.deleted = append(s.deleted, uid)
	s.tasks = slices.DeleteFunc(s.tasks, func(t history.TaskSummary) bool { return t.UID == uid })
	return history.Deleted{Messages: 9, Pieces: 4, Events: 5, Checkpoints: 2}, nil
}

func (s *archive) RecordEvents(_ context.Context, events []history.Event) error {
	if s.record == nil {
		s.events = append(s.events, events...)
	}
	return s.record
}

// TaskState knows the task new, which a rewind from checkpoint 2 has left at message 9.
func (s *archive) TaskState(_ context.Context, uid string) (history.TaskState, error) {
	if uid != "new" {
		return history.TaskState{}, fmt.Errorf("%w: %s", history.ErrNotFound, uid)
	}
	return s.state, nil
}

// Rewind knows one rewind, from checkpoint 2 to checkpoint 1.
func (s *archive) Rewind(_ context.Context, _ history.Key, id string) (history.Rewind, error) {
	switch id {
	case "back":
		return history.Rewind{ID: id, Completed: true, Rewound: &history.Rewound{Scope: "Code", Paths: []string{"src"}, From: 2, To: 1}}, nil
	case "":
		if s.rewound == "" {
			return history.Rewind{}, history.ErrNotFound
		}
		return s.Rewind(context.Background(), history.Key{}, s.rewound)
	}
	return history.Rewind{ID: id}, nil
}

// tasks stands in for the cluster: UIDs by name.
type tasks map[string]string

func (t tasks) TaskUID(_ context.Context, _, name string) (string, error) {
	if t[name] == "unknown" {
		return "", errors.New("the API server is down")
	}
	return t[name], nil
}

func (t tasks) HasUID(_ context.Context, uid string) (bool, error) {
	if uid == "unknown" {
		return false, errors.New("the API server is down")
	}
	for _, there := range t {
		if there == uid {
			return true, nil
		}
	}
	return false, nil
}

// code stands in for the gitstore.
type code struct {
	err   error
	asked []string

	// compared is the last query for a difference, with namespace and UID; diff and refusal are
	// the answer.
	compared gitstoreapi.DiffQuery
	of       string
	diff     gitstoreapi.Diff
	refusal  error
}

func (c *code) Diff(_ context.Context, namespace, uid string, q gitstoreapi.DiffQuery) (gitstoreapi.Diff, error) {
	c.of, c.compared = namespace+"/"+uid, q
	return c.diff, c.refusal
}

func (c *code) DeleteTask(_ context.Context, namespace, uid, name string, formers []string) (historyapi.CodeDeletion, error) {
	c.asked = append(c.asked, strings.Join(append([]string{namespace, uid, name}, formers...), "/"))
	return historyapi.CodeDeletion{Refs: 6, Repositories: 1, Bytes: 4096}, c.err
}

// live stands in for the daemons of running tasks.
type live struct {
	asked  []string
	commit string
	err    error
}

func (l *live) Publish(_ context.Context, uid string) (string, error) {
	l.asked = append(l.asked, uid)
	return l.commit, l.err
}

func someLines() []history.ExportLine {
	return []history.ExportLine{
		{Kind: history.ExportTask, Body: json.RawMessage(`{"name":"a"}`)},
		{Kind: history.ExportMessage, Body: json.RawMessage(`{"text":"<&>"}`)},
		{Kind: history.ExportEnd, Body: json.RawMessage(`{}`)},
	}
}

// testImportBytes is the size limit of imports in these tests.
const testImportBytes = 1 << 20

const (
	historiesPath = base + "/taskhistories"
	historyPath   = historiesPath + "/a"
	exportPath    = historyPath + "/export"
)

// expectUntouched expects that no history, and no code, was deleted.
func (f *fixture) expectUntouched() {
	GinkgoHelper()
	Expect(f.archive.claimed).To(BeEmpty(), "claimed histories")
	Expect(f.archive.deleted).To(BeEmpty(), "histories")
	Expect(f.code.asked).To(BeEmpty(), "code of histories")
}
