package sidecar

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/broadcast"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// maxWaiting bounds the calls that wait for an answer at a time. It leaves room for the hooks of
	// other tools: see socket.MaxAsking.
	maxWaiting = 16
	// defaultReturnWait is Config.ReturnWait, if that is left out.
	defaultReturnWait = time.Minute
	// maxShownInput bounds, in bytes, how much of a tool's input is shown to whoever is asked.
	maxShownInput = 1000
)

// Why a call is not carried out, as an agent is told.
const (
	attemptOverText = "This attempt of the task is over: the call is not carried out."
	runEndingText   = "This run of the agent is ending: the call is not carried out."
	usedText        = "The approval of this call was used already: make the call again, and a person is asked."
)

// asks are the calls about which somebody is asked. The journal says how each stands.
type asks struct {
	mu      sync.Mutex       // of changes of the journal's Requests
	hooks   map[string]int   // how many hooks wait for a request, by its id
	changed broadcast.Change // a request was answered, or has ended
}

// askedCall is a tool call that a rule decides on.
type askedCall struct {
	// key identifies the run of the hook; empty if there is none.
	key         string
	tool, input string
	cut         bool
	rule        riskyTool
}

// requests returns the requests of this pod.
func (d *daemon) requests() journal.Requests {
	state := d.volume.Journal.State()
	return state.RequestsOf(d.cfg.Pod.Attempt, d.cfg.Pod.PodUID)
}

// changeRequests changes them on disk. asks.mu must be locked.
func (d *daemon) changeRequests(change func(*journal.Requests)) error {
	return d.volume.Journal.Update(func(s *journal.State) error {
		known := s.RequestsOf(d.cfg.Pod.Attempt, d.cfg.Pod.PodUID)
		change(&known)
		s.Requests = &known
		return nil
	})
}

// decide returns why a tool whose hook waits must not run; "" if it may, by the request with that id if
// somebody was asked.
func (d *daemon) decide(ctx context.Context, b wire.BeforeTool, rule riskyTool) (request, refused string) {
	c := askedCall{key: b.Key, tool: b.Name, input: b.Input, cut: b.Cut, rule: rule}
	switch rule.action {
	case v1alpha1.RiskyToolDeny:
		d.recordOutcome(v1alpha1.EventToolRefused, d.riskyTool(b.ID, b.Name, true), nil,
			fmt.Sprintf("the tool %s was not run: %s", d.toolName(b.Name), c.refusal()))
		return "", c.refusal()
	case v1alpha1.RiskyToolAsk:
		return d.awaitAnswer(ctx, c)
	}
	return "", ""
}

// refusal is what an agent is told of a call that its rule refuses.
func (c askedCall) refusal() string {
	why := strings.TrimSpace(c.rule.message)
	if why == "" {
		why = "calls like this one are not allowed here"
	}
	if c.cut {
		why += " (its input is too long to be looked at as a whole: a shorter one may be allowed)"
	}
	return "A rule of this task refuses the call: " + why
}

// toolName returns a tool's name as it may leave the pod.
func (d *daemon) toolName(name string) string {
	return clip.Bytes(d.cfg.Mask.Text(agent.Text([]byte(name))), maxName)
}

// awaitAnswer has somebody asked about a call, and returns the id of the request, and why the call must
// not run; "" if it may. ctx ends with the connection of its hook.
func (d *daemon) awaitAnswer(ctx context.Context, c askedCall) (id, refused string) {
	id, refused = d.openRequest(ctx, c)
	if id == "" {
		return "", refused
	}
	defer d.leaveRequest(id)
	for {
		d.asks.mu.Lock()
		changed := d.asks.changed.Next()
		request, found := findRequest(d.requests(), func(r journal.Request) bool { return r.ID == id })
		d.asks.mu.Unlock()
		switch {
		case found && request.Answer != nil:
			return id, answerText(c.tool, *request.Answer)
		case !found || request.Ended:
			return id, runEndingText
		}
		select {
		case <-changed:
		case <-d.idle:
			return id, runEndingText
		case <-ctx.Done():
			return id, ""
		}
	}
}

// answerText is what an agent is told of an answer; "" if the tool may run.
func answerText(tool string, a journal.RequestAnswer) string {
	if a.Approved {
		return ""
	}
	text := fmt.Sprintf("The call of %s was denied by %s", tool, a.By)
	if a.Reason != "" {
		text += ": " + a.Reason
	}
	return text + ". Do not make it again; go on without it."
}

// findRequest returns the newest request that matches.
func findRequest(all journal.Requests, match func(journal.Request) bool) (journal.Request, bool) {
	for _, r := range slices.Backward(all.List) {
		if match(r) {
			return r, true
		}
	}
	return journal.Request{}, false
}

// openRequest returns the id of the request for a call whose hook waits: the one that it has, or a new
// one. A call that has its answer is not asked about again before its hook has had that. It returns no id,
// and why the call is refused, if nobody can be asked.
func (d *daemon) openRequest(ctx context.Context, c askedCall) (id, refused string) {
	d.asks.mu.Lock()
	defer d.asks.mu.Unlock()
	select {
	case <-d.idle:
		return "", runEndingText
	default:
	}
	all := d.requests()
	tool, _, digest := d.shown(c)
	// The ids of calls are the model's, and some give the same one to many calls.
	known, found := findRequest(all, func(r journal.Request) bool {
		return r.IsOf(c.key, tool, digest) && (r.Waits() || r.Answer != nil)
	})
	if !found {
		waiting := 0
		for _, r := range all.List {
			if r.Waits() {
				waiting++
			}
		}
		if waiting >= maxWaiting {
			return "", fmt.Sprintf("A person has to be asked before this call, and %d calls wait for answers already: wait until they have ended, then try again.", waiting)
		}
		var err error
		if known, err = d.addRequest(ctx, c, all, false); err != nil {
			d.log.Error(err, "nobody can be asked about a tool call", "tool", c.tool)
			return "", "A person has to be asked before this call, and Clew cannot do that now: try again in some minutes."
		}
	}
	if d.asks.hooks == nil {
		d.asks.hooks = map[string]int{}
	}
	d.asks.hooks[known.ID]++
	return known.ID, ""
}

// shown returns a call's tool and input as they may leave the pod, and the digest of the input.
func (d *daemon) shown(c askedCall) (tool, input, digest string) {
	input = d.cfg.Mask.Text(agent.Text([]byte(c.input)))
	return d.toolName(c.tool), input, digestOf(input)
}

// addRequest journals a new request and records it. asks.mu must be locked. A call that its rule
// refuses is answered by that.
func (d *daemon) addRequest(ctx context.Context, c askedCall, all journal.Requests, stopsAgent bool) (journal.Request, error) {
	tool, input, digest := d.shown(c)
	now := time.Now()
	record := &daemonv1.ToolRequest{
		Id: d.requestID(tool, digest, all.Made+1), Tool: tool, Input: clip.Marked(input, maxShownInput), InputDigest: digest, Message: c.rule.message,
		StopsAgent: stopsAgent, Since: timestamppb.New(now), Deadline: timestamppb.New(now.Add(d.cfg.Pod.Policy.ApprovalDeadline())),
	}
	note := fmt.Sprintf("Clew asks a person before the call of %s is carried out (request %s).", tool, record.GetId())
	if c.rule.action == v1alpha1.RiskyToolDeny {
		record.Refused = c.refusal()
		note = fmt.Sprintf("Clew has stopped the agent at the call of %s (request %s): %s", tool, record.GetId(), record.GetRefused())
	}
	encoded, err := protojson.Marshal(record)
	if err != nil {
		return journal.Request{}, err
	}
	request := journal.Request{ID: record.GetId(), Key: c.key, Tool: tool, InputDigest: digest, Record: encoded, StopsAgent: stopsAgent}
	if err := d.changeRequests(func(all *journal.Requests) { all.Add(request) }); err != nil {
		return request, err
	}
	return request, d.recorder.Insert(ctx, noteRecord(note), &daemonv1.Record{Body: &daemonv1.Record_ToolRequest{ToolRequest: record}})
}

// requestID makes the id of a request from the pod, the tool, its input and the number of the request in
// its attempt: no other call ever has it, and nobody knows it beforehand.
func (d *daemon) requestID(tool, digest string, number int64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%d", d.cfg.Pod.PodUID, tool, digest, number))
	return fmt.Sprintf("%d-%s", d.cfg.Pod.Attempt, hex.EncodeToString(sum[:8]))
}

// digestOf is the digest by which a repeated call is recognised.
func digestOf(input string) string {
	sum := sha256.Sum256([]byte(input))
	return hex.EncodeToString(sum[:])
}

// noteRecord is a message of Clew's own in the conversation, which the agent does not see.
func noteRecord(text string) *daemonv1.Record {
	return &daemonv1.Record{Body: &daemonv1.Record_Message{Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_SYSTEM, Text: text}}}
}

// endRecord says that a request waits no longer.
func endRecord(id string) *daemonv1.Record {
	return &daemonv1.Record{Body: &daemonv1.Record_ToolRequestEnd{ToolRequestEnd: &daemonv1.ToolRequestEnd{Id: id}}}
}

// answer gives a request its answer, once. One that no request waits for is ignored.
func (d *daemon) answer(ctx context.Context, m *daemonv1.AnswerRequest) {
	verb := "denied"
	if m.GetApproved() {
		verb = "approved"
	}
	note := fmt.Sprintf("Request %s was %s by %s", m.GetId(), verb, m.GetBy())
	if m.GetReason() != "" {
		note += ": " + m.GetReason()
	}
	d.endRequest(ctx, m.GetId(), note, func(r *journal.Request) {
		r.Answer = &journal.RequestAnswer{Approved: m.GetApproved(), By: m.GetBy(), Reason: m.GetReason()}
	})
}

// endRequest ends a request whose call waits, unless it has ended.
func (d *daemon) endRequest(ctx context.Context, id, note string, change func(*journal.Request)) {
	d.asks.mu.Lock()
	defer d.asks.mu.Unlock()
	d.endLocked(ctx, id, note, change)
}

func (d *daemon) endLocked(ctx context.Context, id, note string, change func(*journal.Request)) {
	waits := func(r journal.Request) bool { return r.ID == id && r.Waits() && !r.StopsAgent }
	if _, found := findRequest(d.requests(), waits); !found {
		return
	}
	err := d.changeRequests(func(all *journal.Requests) {
		r := &all.List[slices.IndexFunc(all.List, waits)]
		r.Ended = true
		if change != nil {
			change(r)
		}
	})
	if err == nil {
		d.asks.changed.Announce()
		err = d.recorder.Insert(ctx, noteRecord(note), endRecord(id))
	}
	if err != nil && ctx.Err() == nil {
		d.log.Error(err, "the end of a request could not be recorded", "request", id)
	}
}

// use reports whether an approved call may run now, which it may once.
func (d *daemon) use(id string) bool {
	d.asks.mu.Lock()
	defer d.asks.mu.Unlock()
	unused := func(r journal.Request) bool { return r.ID == id && !r.Used }
	if !slices.ContainsFunc(d.requests().List, unused) {
		return false
	}
	err := d.changeRequests(func(all *journal.Requests) { all.List[slices.IndexFunc(all.List, unused)].Used = true })
	if err != nil {
		d.log.Error(err, "an approval could not be noted as used, and somebody is asked again", "request", id)
	}
	return err == nil
}

// leaveRequest notes that a hook waits no longer. A call whose hook does not come back is given up.
func (d *daemon) leaveRequest(id string) {
	d.asks.mu.Lock()
	defer d.asks.mu.Unlock()
	if d.asks.hooks[id]--; d.asks.hooks[id] == 0 {
		delete(d.asks.hooks, id)
		d.expectHook(id)
	}
}

// expectHook gives a request up if no hook waits for it after a while.
func (d *daemon) expectHook(id string) {
	time.AfterFunc(cmp.Or(d.cfg.ReturnWait, defaultReturnWait), func() {
		d.asks.mu.Lock()
		defer d.asks.mu.Unlock()
		select {
		case <-d.idle:
		default:
			if d.asks.hooks[id] == 0 {
				d.endLocked(context.Background(), id, givenUpNote(id), nil)
			}
		}
	})
}

func givenUpNote(id string) string {
	return fmt.Sprintf("Request %s was withdrawn: the agent has given the call up.", id)
}

// resumeRequests continues with the requests that an earlier process of the daemon has left: what it
// may not have recorded is recorded again, which changes nothing if it was.
func (d *daemon) resumeRequests(ctx context.Context) error {
	d.asks.mu.Lock()
	defer d.asks.mu.Unlock()
	for _, r := range d.requests().List {
		record := endRecord(r.ID)
		if r.Waits() || r.StopsAgent {
			request := &daemonv1.ToolRequest{}
			if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(r.Record, request); err != nil {
				return fmt.Errorf("the journal holds a request that cannot be read: %w", err)
			}
			record = &daemonv1.Record{Body: &daemonv1.Record_ToolRequest{ToolRequest: request}}
		}
		if err := d.recorder.Insert(ctx, record); err != nil {
			return err
		}
		if r.Waits() && !r.StopsAgent {
			d.expectHook(r.ID)
		}
	}
	return nil
}

// endRequests ends the requests whose calls wait, at the end of the agent.
func (d *daemon) endRequests(ctx context.Context) {
	d.asks.mu.Lock()
	defer d.asks.mu.Unlock()
	for _, r := range d.requests().List {
		d.endLocked(ctx, r.ID, fmt.Sprintf("Request %s was withdrawn: the agent has ended.", r.ID), nil)
	}
}

// waiting reports whether a hook waits for an answer.
func (a *asks) waiting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.hooks) > 0
}
