package historyapi

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
)

// Reasons of the events that record exports, imports and deletions.
const (
	reasonExported = clewv1alpha1.EventHistoryExported
	reasonImported = clewv1alpha1.EventHistoryImported
	reasonDeleted  = clewv1alpha1.ReasonHistoryDeleted
)

const (
	// transferTimeout bounds exports and imports, deletionTimeout deletions. The API
	// server may give up earlier.
	transferTimeout = 30 * time.Minute
	deletionTimeout = 15 * time.Minute
	// flushEvery is how much of an export is buffered at most.
	flushEvery = 64 << 10
	linesType  = "application/x-ndjson"
)

// export streams a history as JSON lines. The export is recorded before anything is sent.
// Parameters: uid.
func (a *api) export(w http.ResponseWriter, c *call) error {
	release, err := a.enter(c, a.exports)
	if err != nil {
		return err
	}
	defer release()
	task, err := a.findInReadSlot(c, c.URL.Query().Get("uid"))
	if err != nil {
		return err
	}
	if err := a.audit(c, task.Task, reasonExported, "the history was exported"); err != nil {
		return err
	}
	lines := &lineWriter{w: w, zip: acceptsGzip(c.Request)}
	if err := a.Archive.Export(c.Context(), task.Namespace, task.Name, task.UID, lines.write); err != nil {
		return err
	}
	return lines.close()
}

// lineWriter writes lines as a response. The response begins with the first line: until
// then, it may still become an error.
type lineWriter struct {
	w   http.ResponseWriter
	zip bool

	encoder  *json.Encoder
	buffered *bufio.Writer
	zipped   *gzip.Writer
}

func (l *lineWriter) write(line history.ExportLine) error {
	if l.encoder == nil {
		l.begin()
	}
	return l.encoder.Encode(line)
}

func (l *lineWriter) begin() {
	header := l.w.Header()
	header.Set("Content-Type", linesType)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	var to io.Writer = l.w
	if l.zip {
		header.Set("Content-Encoding", "gzip")
		l.zipped = gzip.NewWriter(l.w)
		to = l.zipped
	}
	l.buffered = bufio.NewWriterSize(to, flushEvery)
	l.encoder = json.NewEncoder(l.buffered)
	l.encoder.SetEscapeHTML(false)
}

func (l *lineWriter) close() error {
	if l.encoder == nil {
		l.begin()
	}
	err := l.buffered.Flush()
	if l.zipped != nil {
		err = errors.Join(err, l.zipped.Close())
	}
	return err
}

func acceptsGzip(r *http.Request) bool {
	for _, encoding := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(encoding), ";")
		if strings.EqualFold(name, "gzip") && strings.ReplaceAll(quality, " ", "") != "q=0" {
			return true
		}
	}
	return false
}

// deleteHistory deletes everything stored of a task. It claims the history, so that no Task
// adopts it any more, and deletes first its code in the gitstore and then its rows, so that an
// interrupted deletion can be requested again by the same name and completes; if it is not,
// the maintenance of the history completes it. The Task object must be gone. Parameters: uid, dryRun=All; or the same
// in a body, as kubectl sends it.
func (a *api) deleteHistory(c *call) (any, error) {
	uid, dryRun, err := deleteOptions(c.Request)
	if err != nil {
		return nil, err
	}
	release, err := a.enter(c, a.deletions)
	if err != nil {
		return nil, err
	}
	defer release()
	task, err := a.findInReadSlot(c, uid)
	if err != nil {
		return nil, err
	}
	if err := a.checkGone(c.Context(), task.Task); err != nil {
		return nil, err
	}
	answer := &historyv1alpha1.HistoryDeletion{
		TypeMeta:   typeMeta("HistoryDeletion"),
		ObjectMeta: metav1.ObjectMeta{Namespace: task.Namespace, Name: task.Name, UID: types.UID(task.UID)},
	}
	if dryRun {
		answer.DryRun, answer.Messages, answer.Checkpoints = true, task.Totals.Messages, task.Checkpoints
		return answer, nil
	}
	// The caller may have disconnected; a deletion that was begun is still completed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), deletionTimeout)
	defer cancel()
	return answer, a.delete(ctx, c, task.Task, answer)
}

func (a *api) delete(ctx context.Context, c *call, task history.Task, answer *historyv1alpha1.HistoryDeletion) error {
	log := a.Log.WithValues("namespace", task.Namespace, "task", task.Name, "uid", task.UID, "caller", c.caller.GetName())
	log.Info("deleting the history of a task")
	formers, err := a.Archive.ClaimDeletion(ctx, task.UID)
	if err != nil {
		log.Info("the deletion of a history could not begin", "error", err.Error())
		return notClaimed(task, err)
	}
	code, err := a.Code.DeleteTask(ctx, task.Namespace, task.UID, task.Name, formers)
	if err != nil {
		log.Info("the code of a task could not be deleted", "error", err.Error())
		return unfinished(fmt.Sprintf("the history of the task %q is not deleted: its checkpoints in the gitstore could not be deleted, and its messages are deleted after them: %s; delete it again to continue", task.Name, gitstoreMessage(err)))
	}
	deleted, err := a.Archive.DeleteTask(ctx, task.UID)
	switch {
	case err == nil, errors.Is(err, history.ErrNotFound): // deleted concurrently
	case deleted.Task.UID != "":
		// The rows are gone, and texts in use elsewhere go with the next sweep.
		answer.Pending = true
		log.Info("texts of a deleted task are still in use", "error", err.Error())
	default:
		log.Info("the rows of a task could not be deleted", "error", err.Error())
		return unfinished(fmt.Sprintf("the history of the task %q is deleted in part: its checkpoints in the gitstore are gone, but its messages remain because the history store failed; delete it again to continue", task.Name))
	}
	answer.Messages, answer.Pieces, answer.Checkpoints, answer.Events = deleted.Messages, deleted.Pieces, deleted.Checkpoints, deleted.Events
	answer.Refs, answer.Repositories, answer.Bytes = code.Refs, code.Repositories, code.Bytes
	log.Info("deleted the history of a task", "messages", deleted.Messages, "checkpoints", deleted.Checkpoints, "refs", code.Refs)
	if err := a.audit(c, task, reasonDeleted, "the history was permanently deleted"); err != nil {
		return fmt.Errorf("the history of the task %s is deleted, but who deleted it is recorded only in the server's log: %w", task.Name, err)
	}
	return nil
}

// notClaimed returns the error of a deletion that has not begun.
func notClaimed(task history.Task, err error) error {
	if !errors.Is(err, history.ErrNotFound) {
		return unfinished(fmt.Sprintf("the history of the task %q is not deleted: the history store failed; delete it again", task.Name))
	}
	conflict := apierrors.NewConflict(resourceOf(Access{Resource: resourceTaskHistories}), task.Name, errors.New("a Task has adopted it"))
	conflict.ErrStatus.Message = fmt.Sprintf("the history of the task %q with UID %s is not deleted: a new Task of that name has just adopted it, and it can be deleted only after that one", task.Name, task.UID)
	return conflict
}

// unfinished returns the error of a deletion that stopped. It has no Retry-After: clients
// would retry on it by themselves for a minute, silently.
func unfinished(message string) error {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: historyv1alpha1.CauseDeletionUnfinished}}}
	return err
}

// gitstoreMessage returns the gitstore's own message, without details of the connection.
func gitstoreMessage(err error) string {
	var refused *gitstoreapi.Refusal
	if errors.As(err, &refused) {
		return refused.Message
	}
	return "the gitstore cannot be reached"
}

// deleteOptions reads the UID and whether the deletion is a dry run.
func deleteOptions(r *http.Request) (uid string, dryRun bool, err error) {
	values := r.URL.Query()
	uid = values.Get("uid")
	modes := values["dryRun"]
	body, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	if err != nil {
		return "", false, badRequest("the body could not be read: %v", err)
	}
	if len(body) > 0 {
		var options metav1.DeleteOptions
		if err := json.Unmarshal(body, &options); err != nil {
			return "", false, badRequest("the body is not a DeleteOptions object in JSON: %v", err)
		}
		modes = append(modes, options.DryRun...)
		if p := options.Preconditions; p != nil && p.UID != nil {
			if uid != "" && uid != string(*p.UID) {
				return "", false, badRequest("two UIDs are given, %s and %s; give one", uid, *p.UID)
			}
			uid = string(*p.UID)
		}
	}
	for _, mode := range modes {
		if mode != metav1.DryRunAll {
			return "", false, badRequest("dryRun can be %q only, not %q", metav1.DryRunAll, mode)
		}
		dryRun = true
	}
	return uid, dryRun, nil
}

// checkGone refuses to delete the history of a task that still exists: whatever it does
// next would be recorded again.
func (a *api) checkGone(ctx context.Context, task history.Task) error {
	live, err := a.Tasks.TaskUID(ctx, task.Namespace, task.Name)
	if err != nil {
		a.Log.Info("could not check whether the Task still exists", "error", err.Error())
		return unavailable("could not check whether the Task still exists; try again")
	}
	if live != task.UID {
		return nil
	}
	conflict := apierrors.NewConflict(resourceOf(Access{Resource: resourceTaskHistories}), task.Name, errors.New("its Task still exists"))
	conflict.ErrStatus.Message = fmt.Sprintf("the task %q still exists, and its history can be deleted only after it: delete the task first, with `kubectl delete %s %s -n %s`",
		task.Name, "tasks."+clewv1alpha1.GroupVersion.Group, task.Name, task.Namespace)
	return conflict
}

// audit records who exported, imported or deleted a history. It retries, since an export
// must not be made, and a deletion not remain, unrecorded.
func (a *api) audit(c *call, task history.Task, reason, message string) error {
	event := history.Event{
		ID: uuid.NewString(), Task: task, Time: a.now(), Type: history.EventTypeAccess, Reason: reason,
		Actor: c.caller.GetName(), Message: message,
	}
	a.Log.Info("a history was exported, imported or deleted", "reason", reason, "namespace", task.Namespace, "task", task.Name, "uid", task.UID, "caller", event.Actor)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), requestTimeout)
	defer cancel()
	var err error
	for range 3 {
		if err = a.Archive.RecordEvents(ctx, []history.Event{event}); err == nil {
			return nil
		}
	}
	return err
}
