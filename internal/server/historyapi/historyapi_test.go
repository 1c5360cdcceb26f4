package historyapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	. "github.com/onsi/ginkgo/v2"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/server/historyapi"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

var pg *pgtest.Server

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m, &pg, postgres.Migrate)) }

func TestSpecs(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "The history API")
}

// rights stands in for RBAC: who may do what, as "user verb resource/subresource
// namespace/name".
type rights map[string]bool

func (k rights) Authorize(_ context.Context, who user.Info, a historyapi.Access) (bool, string, error) {
	if who.GetName() == "unlucky" {
		return false, "", errors.New("the API server is down")
	}
	return k[fmt.Sprintf("%s %s %s/%s %s/%s", who.GetName(), a.Verb, a.Resource, a.Subresource, a.Namespace, a.Name)], "", nil
}

// byHeader stands in for the front proxy.
func byHeader(r *http.Request) (*authenticator.Response, bool, error) {
	name := r.Header.Get("X-User")
	return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, name != "", nil
}

type fixture struct {
	t       testing.TB
	mux     *http.ServeMux
	store   *postgres.Store
	archive *archive
	tasks   tasks
	code    *code
}

func serve(t testing.TB, dsn string) *fixture {
	t.Helper()
	return serveWith(t, dsn, func(f *fixture) historyapi.Archive { return f.archive })
}

// serveWith serves an archive that is created with the fixture.
func serveWith(t testing.TB, dsn string, archived func(*fixture) historyapi.Archive) *fixture {
	t.Helper()
	log := testr.NewWithInterface(t, testr.Options{})
	store, err := postgres.Open(t.Context(), dsn, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	f := &fixture{t: t, mux: http.NewServeMux(), store: store, archive: newArchive(), tasks: tasks{}, code: &code{}}
	historyapi.Register(f.mux, historyapi.Options{
		Store: store, Archive: archived(f), Tasks: f.tasks, Code: f.code, ImportBytes: testImportBytes, Now: func() time.Time { return noon }, Authenticator: authenticator.RequestFunc(byHeader), Log: log, Registerer: prometheus.NewRegistry(),
		Authorizer: rights{
			"ann get tasks/conversation team/a":       true,
			"ann get tasks/timeline team/a":           true,
			"ann get tasks/conversation team/unknown": true,
			"ann get tasks/timeline team/unknown":     true,
			"ann list timelines/ team/":               true,
			"ann get tasks/snapshots team/a":          true,
			"ann list search/ team/":                  true,
			"ann list taskhistories/ team/":           true,
			"ann get taskhistories/ team/a":           true,
			"ann get taskhistories/ team/unknown":     true,
			"ann get taskhistories/export team/a":     true,
			"ann create taskhistories/ team/":         true,
			"ann delete taskhistories/ team/a":        true,
			"ann delete taskhistories/ team/unknown":  true,
		},
	})
	return f
}

// get reads into answer and returns the code.
func (f *fixture) get(who, path string, answer any) int {
	f.t.Helper()
	r := httptest.NewRequestWithContext(f.t.Context(), http.MethodGet, path, nil)
	if who != "" {
		r.Header.Set("X-User", who)
	}
	w := httptest.NewRecorder()
	f.mux.ServeHTTP(w, r)
	body, err := io.ReadAll(w.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		f.t.Errorf("%s: content type %q", path, got)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		f.t.Fatalf("%s: %v in %s", path, err, body)
	}
	return w.Code
}

const (
	base             = "/apis/history.clew.dev/v1alpha1/namespaces/team"
	conversationPath = base + "/tasks/a/conversation"
	timelinePath     = base + "/tasks/a/timeline"
)

func (f *fixture) fill() {
	f.t.Helper()
	task := history.Task{Namespace: "team", Name: "a", UID: "u"}
	if _, err := f.store.Begin(f.t.Context(), task, 1, nil, history.BeginOptions{}); err != nil {
		f.t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	messages := []conversation.Message{
		{Role: conversation.RoleUser, Text: "do it"},
		{Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{ID: "1", Name: "Bash", Input: `{"a":1}`}},
		{Role: conversation.RoleTool, ToolResult: &conversation.ToolResult{CallID: "1", Output: "x", IsError: true}},
		{Role: conversation.RoleOutput, Text: "odd", Raw: "raw"},
		{Role: conversation.RoleAssistant, Text: "done"},
	}
	var records []history.Record
	for i, m := range messages {
		records = append(records, history.Record{Sequence: int64(i + 1), Time: at.Add(time.Duration(i) * time.Second), Attempt: 1, Message: &m})
	}
	records = append(records, history.Record{Sequence: 6, Time: at.Add(time.Minute), Checkpoint: &history.Checkpoint{Number: 1, Trigger: "Manual", Time: at.Add(time.Minute)}})
	if _, err := f.store.Append(f.t.Context(), task, 1, records); err != nil {
		f.t.Fatal(err)
	}
}

var _ = Describe("The history API", func() {
	It("a conversation is read", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.fill()
		var list historyv1alpha1.ConversationList
		if code := f.get("ann", conversationPath, &list); code != http.StatusOK {
			t.Fatalf("code %d", code)
		}
		at := func(s int) metav1.MicroTime {
			return metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5+s, 6000, time.UTC))
		}
		entry := func(position int64, role string) historyv1alpha1.ConversationEntry {
			return historyv1alpha1.ConversationEntry{Position: position, Time: at(int(position - 1)), Branch: "main", Attempt: 1, Role: role}
		}
		want := historyv1alpha1.ConversationList{
			TypeMeta: metav1.TypeMeta{APIVersion: "history.clew.dev/v1alpha1", Kind: "ConversationList"},
			Items: []historyv1alpha1.ConversationEntry{
				entry(1, "user"), entry(2, "assistant"), entry(3, "tool"), entry(4, "output"), entry(5, "assistant"),
			},
		}
		want.Items[0].Text = "do it"
		want.Items[1].ToolCall = &historyv1alpha1.ToolCall{ID: "1", Name: "Bash", Input: `{"a":1}`}
		want.Items[2].ToolResult = &historyv1alpha1.ToolResult{CallID: "1", Output: "x", IsError: true}
		want.Items[3].Text, want.Items[3].Raw = "odd", "raw"
		want.Items[4].Text = "done"
		if d := cmp.Diff(want, list); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}

		var tail historyv1alpha1.ConversationList
		f.get("ann", conversationPath+"?tail=1", &tail)
		var after historyv1alpha1.ConversationList
		f.get("ann", conversationPath+"?after=3&limit=1", &after)
		if len(after.Items) != 1 || after.Items[0].Position != 4 {
			t.Errorf("after: %+v", after.Items)
		}
		if len(tail.Items) != 1 || tail.Items[0].Text != "done" {
			t.Errorf("tail: %+v", tail.Items)
		}
	})

	It("pages of a conversation follow each other", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.fill()
		var positions []int64
		var remaining []int64
		token := ""
		for {
			var list historyv1alpha1.ConversationList
			if code := f.get("ann", conversationPath+"?limit=2&continue="+url.QueryEscape(token), &list); code != http.StatusOK {
				t.Fatalf("code %d", code)
			}
			for _, e := range list.Items {
				positions = append(positions, e.Position)
			}
			if list.Continue == "" {
				break
			}
			remaining = append(remaining, *list.RemainingItemCount)
			token = list.Continue
		}
		if d := cmp.Diff([]int64{1, 2, 3, 4, 5}, positions); d != "" {
			t.Errorf("positions (-want +got):\n%s", d)
		}
		if d := cmp.Diff([]int64{3, 1}, remaining); d != "" {
			t.Errorf("messages that remain (-want +got):\n%s", d)
		}
	})

	It("timelines are read", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.fill()
		for _, path := range []string{timelinePath, base + "/timelines", base + "/timeline"} {
			var reasons []string
			token := ""
			for pages := 0; pages < 10; pages++ {
				var list historyv1alpha1.TimelineEventList
				if code := f.get("ann", path+"?limit=1&continue="+url.QueryEscape(token), &list); code != http.StatusOK {
					t.Fatalf("%s: code %d", path, code)
				}
				for _, e := range list.Items {
					reasons = append(reasons, e.Reason)
				}
				if token = list.Continue; token == "" {
					break
				}
			}
			if d := cmp.Diff([]string{"CheckpointCreated", "AgentMessage", "UserMessage"}, reasons); d != "" {
				t.Errorf("%s (-want +got):\n%s", path, d)
			}
		}
		filters := map[string]int{
			"?type=chat": 2, "?type=chat,checkpoint": 3, "?type=chat&type=checkpoint": 3, "?type=fork": 0,
			"?since=2026-01-02T03:04:07Z": 2, "?since=2030-01-02T03:04:07%2B01:00": 0,
		}
		for query, want := range filters {
			var list historyv1alpha1.TimelineEventList
			if code := f.get("ann", timelinePath+query, &list); code != http.StatusOK || len(list.Items) != want {
				t.Errorf("%s: code %d, %d events, want %d", query, code, len(list.Items), want)
			}
		}
		var list historyv1alpha1.TimelineEventList
		f.get("ann", timelinePath+"?type=checkpoint", &list)
		Expect(list.Items[0]).To(And(
			HaveField("Task", "a"), HaveField("TaskUID", "u"), HaveField("Checkpoint", int64(1)), HaveField("Type", "checkpoint"),
			HaveField("Actor", "clew"), HaveField("Attempt", int64(1)), HaveField("ID", Not(BeEmpty()))))
	})

	It("invalid requests are refused", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.fill()
		tests := []struct {
			name, who, path string
			code            int
			reason          metav1.StatusReason
		}{
			{"nobody", "", conversationPath, 401, metav1.StatusReasonUnauthorized},
			{"may not", "bob", conversationPath, 403, metav1.StatusReasonForbidden},
			{"may not know", "bob", base + "/tasks/unknown/conversation", 403, metav1.StatusReasonForbidden},
			{"may not list", "bob", base + "/timelines", 403, metav1.StatusReasonForbidden},
			{"other namespace", "ann", strings.Replace(base, "team", "other", 1) + "/timelines", 403, metav1.StatusReasonForbidden},
			{"rights unknown", "unlucky", conversationPath, 503, metav1.StatusReasonServiceUnavailable},
			{"no task", "ann", base + "/tasks/unknown/conversation", 404, metav1.StatusReasonNotFound},
			{"no task's timeline", "ann", base + "/tasks/unknown/timeline", 404, metav1.StatusReasonNotFound},
			{"no branch", "ann", conversationPath + "?branch=x", 404, metav1.StatusReasonNotFound},
			{"limit", "ann", conversationPath + "?limit=-1", 400, metav1.StatusReasonBadRequest},
			{"limit no number", "ann", timelinePath + "?limit=x", 400, metav1.StatusReasonBadRequest},
			{"continue", "ann", conversationPath + "?continue=x", 400, metav1.StatusReasonBadRequest},
			{"continue of another list", "ann", timelinePath + "?continue=eyJrIjoiY29udmVyc2F0aW9uIn0", 400, metav1.StatusReasonBadRequest},
			{"type", "ann", timelinePath + "?type=x", 400, metav1.StatusReasonBadRequest},
			{"since", "ann", timelinePath + "?since=yesterday", 400, metav1.StatusReasonBadRequest},
			{"unknown resource", "ann", base + "/tasks/a/secrets", 404, metav1.StatusReasonNotFound},
			{"unknown path", "ann", "/apis/history.clew.dev/v2", 404, metav1.StatusReasonNotFound},
		}
		for _, tt := range tests {
			var status metav1.Status
			code := f.get(tt.who, tt.path, &status)
			Expect(code).To(Equal(tt.code), tt.name)
			Expect(status).To(And(
				HaveField("Kind", "Status"), HaveField("Code", int32(tt.code)), HaveField("Reason", tt.reason), HaveField("Message", Not(BeEmpty()))), tt.name)
		}
		w := httptest.NewRecorder()
		f.mux.ServeHTTP(w, httptest.NewRequest(http.MethodDelete, conversationPath, nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("DELETE: code %d", w.Code)
		}
	})

	// A response to somebody who may not read a task must not reveal whether it exists.
	It("a forbidden response is the same whether or not the task exists", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.fill()
		var known, unknown metav1.Status
		f.get("bob", conversationPath, &known)
		f.get("bob", base+"/tasks/x/conversation", &unknown)
		known.Details.Name, unknown.Details.Name = "", ""
		known.Message = strings.ReplaceAll(known.Message, `"a"`, `"x"`)
		if d := cmp.Diff(known, unknown); d != "" {
			t.Errorf("the answers differ:\n%s", d)
		}
	})

	It("a store that is down is reported", func() {
		t := GinkgoTB()
		f := serve(t, "postgres://u:secret@127.0.0.1:1/none")
		var status metav1.Status
		if code := f.get("ann", conversationPath, &status); code != 503 || status.Details.RetryAfterSeconds == 0 {
			t.Errorf("with the store down: code %d and %+v, want 503 with a time to retry", code, status)
		}
		if strings.Contains(status.Message, "127.0.0.1") {
			t.Errorf("the error reveals internals: %s", status.Message)
		}
	})

	It("the API is discovered", func() {
		t := GinkgoTB()
		f := serve(t, "postgres://127.0.0.1:1/none")
		var groups metav1.APIGroupList
		if code := f.get("", "/apis", &groups); code != 200 || groups.Groups[0].Name != "history.clew.dev" {
			t.Errorf("/apis: %d %+v", code, groups)
		}
		var group metav1.APIGroup
		if code := f.get("", "/apis/history.clew.dev", &group); code != 200 || group.PreferredVersion.GroupVersion != "history.clew.dev/v1alpha1" {
			t.Errorf("group: %d %+v", code, group)
		}
		var resources metav1.APIResourceList
		if code := f.get("", "/apis/history.clew.dev/v1alpha1", &resources); code != 200 || len(resources.APIResources) != 7 {
			t.Errorf("resources: %d %+v", code, resources)
		}
		for _, resource := range resources.APIResources {
			if slices.Contains(resource.Verbs, "delete") || slices.Contains(resource.Verbs, "deletecollection") {
				t.Errorf("%s would be deleted with its namespace", resource.Name)
			}
		}
		for _, path := range []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/apis/history.clew.dev/v1alpha1"} {
			var any map[string]any
			if code := f.get("", path, &any); code != 200 || any["paths"] == nil {
				t.Errorf("%s: %d %v", path, code, any)
			}
		}
	})
})
