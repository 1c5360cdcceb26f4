package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/printers"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/backoff"
)

// lateness is how much earlier than its arrival an event may have happened that came while the connection was
// lost: what a daemon has kept, since it could not reach the server either, is older than what was read.
const lateness = time.Hour

// followed is what was printed of a timeline that is followed.
type followed struct {
	*timeline
	session *session
	task    string
	// params are the filters as the history API expects them, and after the time of --since.
	params url.Values
	after  time.Time
	tab    tabs
	// known are the events that were printed, by their keys, with their times.
	known map[string]time.Time
	// began is true once the first list was printed, of which oldest is the last event if there are earlier ones.
	began  bool
	oldest *historyv1.TimelineEvent
	// lost is when the last watch has ended.
	lost time.Time
}

// follow prints events as they come, until ctx ends. It goes on after a lost connection.
func (o *timeline) follow(ctx context.Context, s *session, task string, params url.Values) error {
	f := &followed{timeline: o, session: s, task: task, params: params, tab: printers.GetNewTabWriter(o.Out), known: map[string]time.Time{}}
	if since := params.Get("since"); since != "" {
		f.after, _ = time.Parse(time.RFC3339, since) // params has formatted it
	}
	pause := backoff.Backoff{Min: time.Second, Max: 30 * time.Second}
	for ctx.Err() == nil {
		worked, err := f.watch(ctx)
		var refused *refusal
		switch {
		case ctx.Err() != nil:
			continue
		case err != nil && (!f.began || errors.As(err, &refused)):
			return err
		case worked:
			pause.Reset()
		}
		if err != nil {
			fmt.Fprintf(o.ErrOut, "The connection is lost, and is made again: %s\n", oneLine(err.Error()))
		}
		_ = pause.Wait(ctx) // fails when ctx has ended
	}
	return nil
}

// refusal is an error that another try does not change.
type refusal struct{ error }

// Unwrap returns the error.
func (r *refusal) Unwrap() error { return r.error }

// watch prints the events that are listed and were not printed, and then those that come, until the watch ends;
// worked is true if it had begun. What is recorded between the two is in both.
func (f *followed) watch(ctx context.Context) (worked bool, err error) {
	stream, err := f.session.watchTimeline(ctx, f.task, f.params)
	if err != nil {
		return false, err
	}
	defer stream.Close()
	if err := f.list(ctx); err != nil {
		return false, err
	}
	defer func() { f.lost = f.clock() }()
	lines := json.NewDecoder(stream)
	for {
		var line struct {
			Type   string
			Object historyv1.TimelineEvent
		}
		switch err := lines.Decode(&line); {
		case errors.Is(err, io.EOF):
			return true, nil // the server ends it from time to time
		case err != nil:
			return true, err
		case line.Type == "":
			return true, &refusal{errors.New("Clew's server in this cluster is of a version that cannot follow timelines: upgrade it, or repeat the command without --follow")}
		}
		if err := f.print([]historyv1.TimelineEvent{line.Object}); err != nil {
			return true, &refusal{err}
		}
	}
}

// watchTimeline begins a watch of the timeline of a task, or of the namespace.
func (s *session) watchTimeline(ctx context.Context, task string, params url.Values) (io.ReadCloser, error) {
	params = maps.Clone(params)
	params.Set("watch", "true")
	if task != "" {
		params.Set("task", task)
	}
	request, err := s.historyRequest("GET", []string{"timelines"}, params)
	if err != nil {
		return nil, err
	}
	stream, err := request.Stream(ctx)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err):
		return nil, &refusal{s.explainHistory(err)}
	case err != nil:
		return nil, s.explainHistory(err)
	}
	return stream, nil
}

// list prints the newest events or, when events were printed before, those that have come since.
func (f *followed) list(ctx context.Context) error {
	params, limit := f.params, f.limit
	if f.began {
		from := f.lost.Add(-lateness).Truncate(time.Second)
		if from.Before(f.after) {
			from = f.after
		}
		params, limit = maps.Clone(params), 0
		params.Set("since", from.UTC().Format(time.RFC3339))
		maps.DeleteFunc(f.known, func(_ string, at time.Time) bool { return at.Before(from) })
	}
	list, err := f.read(ctx, f.session, f.task, params, limit)
	if err != nil {
		return err
	}
	slices.Reverse(list.Items)
	if !f.began {
		if list.Continue != "" && len(list.Items) > 0 {
			f.oldest = &list.Items[0]
		}
		if err := f.head(); err != nil {
			return err
		}
	} else if f.oldest != nil {
		list.Items = slices.DeleteFunc(list.Items, func(e historyv1.TimelineEvent) bool { return before(e, *f.oldest) })
	}
	f.began = true
	return f.print(list.Items)
}

// head prints the header of the table.
func (f *followed) head() error {
	if f.output.value != "table" {
		return nil
	}
	return tableTo(f.tab, f.header(f.task == ""), nil)
}

// before reports whether an event is before another one in a timeline.
func before(a, b historyv1.TimelineEvent) bool {
	return a.Time.Time.Before(b.Time.Time) || a.Time.Time.Equal(b.Time.Time) && a.ID < b.ID
}

// print prints those of the events that were not printed.
func (f *followed) print(events []historyv1.TimelineEvent) error {
	var fresh []historyv1.TimelineEvent
	for _, e := range events {
		if _, known := f.known[keyOf(e)]; known || e.Time.Time.Before(f.after) {
			continue
		}
		f.known[keyOf(e)] = e.Time.Time
		fresh = append(fresh, e)
	}
	if f.output.value == "table" {
		return tableTo(f.tab, nil, f.rows(fresh, f.task == ""))
	}
	for _, e := range fresh {
		if err := f.printRaw(f.output.value, e); err != nil {
			return err
		}
	}
	return nil
}

// keyOf returns what an event is known by. The creation of a checkpoint is told twice, by the manager and by
// the checkpoint's record, which takes its place.
func keyOf(e historyv1.TimelineEvent) string {
	if e.Reason == v1alpha1.EventCheckpointCreated && e.Checkpoint > 0 {
		return e.TaskUID + "/" + strconv.FormatInt(e.Checkpoint, 10)
	}
	return e.ID
}
