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
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega/types"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/namespaced"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/namespaceid"
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

// unreachable names a store that is down.
const unreachable = "postgres://u:secret@127.0.0.1:1/none"

// fixture is the history API, with a store for conversations and timelines, and an archive
// for the rest.
type fixture struct {
	ctx     context.Context
	handler http.Handler
	store   *postgres.Store
	named   *namespaced.Store // the same, for those who name namespaces
	remade  *remade
	archive *archive
	tasks   tasks
	code    *code
	live    *live
	found   *verifier
	objects *objects
	options historyapi.Options
}

// serve serves the API with a new store, and an archive that stands in for another.
func serve() *fixture {
	GinkgoHelper()
	return serveWith(pg.Database(GinkgoTB()), func(f *fixture) historyapi.Archive { return f.archive })
}

// quiet serves the API with the stand-in archive, and a store that is down.
func quiet() *fixture {
	GinkgoHelper()
	return serveWith(unreachable, func(f *fixture) historyapi.Archive { return f.archive })
}

// quietWith serves the API with the stand-in archive, and a stand-in for conversations.
func quietWith(said *conversations) *fixture {
	GinkgoHelper()
	f := quiet()
	f.options.Store = said
	f.options.Registerer = nil
	f.handler = handlerOf(f.options)
	return f
}

// serveWith serves an archive that is created with the fixture.
func serveWith(dsn string, archived func(*fixture) historyapi.Archive) *fixture {
	GinkgoHelper()
	ctx, log := GinkgoT().Context(), testr.NewWithInterface(GinkgoTB(), testr.Options{})
	store, err := postgres.Open(ctx, dsn, log)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(store.Close)
	f := &fixture{ctx: ctx, store: store, remade: &remade{}, archive: newArchive(), tasks: tasks{}, code: &code{}, live: &live{commit: "now"}, found: &verifier{}, objects: newObjects()}
	f.named = namespaced.New(store, f.remade, log)
	if dsn != unreachable {
		DeferOnFailure(f.reportStore, NodeTimeout(10*time.Second))
	}
	if archived(f) == historyapi.Archive(f.archive) {
		DeferOnFailure(f.reportArchive)
	}
	f.options = historyapi.Options{
		Store: f.named, Archive: archived(f), Tasks: f.tasks, Code: f.code, Live: f.live, Verifier: f.found, Objects: f.objects, ImportBytes: testImportBytes, Now: func() time.Time { return noon }, Registerer: prometheus.NewRegistry(),
		Authorizer: rights{
			"ann get tasks/conversation team/a":       true,
			"ann get tasks/timeline team/a":           true,
			"ann get tasks/conversation team/unknown": true,
			"ann get tasks/timeline team/unknown":     true,
			"ann list timelines/ team/":               true,
			"ann get tasks/snapshots team/a":          true,
			"ann get tasks/checkpoints team/a":        true,
			"ann get tasks/diff team/a":               true,
			"ann get tasks/diff team/ab":              true,
			"ann get tasks/diff team/unknown":         true,
			"ann list search/ team/":                  true,
			"ann list taskhistories/ team/":           true,
			"ann get taskhistories/ team/a":           true,
			"ann get taskhistories/ team/unknown":     true,
			"ann get taskhistories/export team/a":     true,
			"ann create taskhistories/ team/":         true,
			"ann delete taskhistories/ team/a":        true,
			"ann delete taskhistories/ team/unknown":  true,
			"bob get tasks/diff team/a":               true,
		},
	}
	f.handler = handlerOf(f.options)
	return f
}

// remade says that each namespace was made anew so many times.
type remade struct{ times atomic.Int64 }

func (r *remade) Get(context.Context, string) (namespaceid.Namespace, error) {
	return namespaceid.Namespace{UID: fmt.Sprint("uid-", r.times.Load())}, nil
}

// serveConversations serves only conversations, from a store of the spec's own.
func serveConversations(store historyapi.Store) *fixture {
	return &fixture{ctx: GinkgoT().Context(), handler: handlerOf(historyapi.Options{
		Store: store, Authorizer: rights{"ann get tasks/conversation team/a": true},
	})}
}

// handlerOf returns the handler of an API that knows its callers by a header.
func handlerOf(o historyapi.Options) http.Handler {
	o.Authenticator, o.Log = authenticator.RequestFunc(byHeader), testr.NewWithInterface(GinkgoTB(), testr.Options{})
	mux := http.NewServeMux()
	historyapi.Register(mux, o)
	return reported(mux)
}

const (
	base             = "/apis/history.clew.dev/v1alpha1/namespaces/team"
	conversationPath = base + "/tasks/a/conversation"
	timelinePath     = base + "/tasks/a/timeline"
)

// fill records a conversation and a checkpoint of the task a.
func (f *fixture) fill() {
	GinkgoHelper()
	task := history.Task{Namespace: "team", Name: "a", UID: "u"}
	_, err := f.store.Begin(f.ctx, task, 1, nil, history.BeginOptions{})
	Expect(err).NotTo(HaveOccurred())
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
	_, err = f.store.Append(f.ctx, task, 1, records)
	Expect(err).NotTo(HaveOccurred())
}

// send sends a request and returns the response.
func (f *fixture) send(who, method, path string, body io.Reader, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(f.ctx, method, path, body)
	if who != "" {
		r.Header.Set("X-User", who)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	return w
}

// ask sends a request of ann's.
func (f *fixture) ask(method, path, body string, header ...string) *httptest.ResponseRecorder {
	return f.send("ann", method, path, strings.NewReader(body), header...)
}

// get expects JSON, whether the response is what was asked for or a refusal.
func (f *fixture) get(who, path string) *httptest.ResponseRecorder {
	GinkgoHelper()
	w := f.send(who, http.MethodGet, path, nil)
	Expect(w).To(HaveHTTPHeaderWithValue("Content-Type", "application/json"), path)
	return w
}

func decoded[T any](w *httptest.ResponseRecorder) T {
	GinkgoHelper()
	var answer T
	Expect(json.Unmarshal(w.Body.Bytes(), &answer)).To(Succeed(), "decode %s", w.Body)
	return answer
}

// read returns what ann reads at a path.
func read[T any](f *fixture, path string) T {
	GinkgoHelper()
	return readAs[T](f, "ann", path)
}

// readAs returns what somebody reads at a path; nobody, if who is empty.
func readAs[T any](f *fixture, who, path string) T {
	GinkgoHelper()
	w := f.get(who, path)
	Expect(w).To(HaveHTTPStatus(http.StatusOK), path)
	return decoded[T](w)
}

// readPages returns all pages of a list, at most ten.
func readPages[List any, Pointer interface {
	*List
	GetContinue() string
}](f *fixture, path string) []List {
	GinkgoHelper()
	separator := "?"
	if strings.Contains(path, "?") {
		separator = "&"
	}
	var pages []List
	for token := ""; len(pages) < 10; {
		page := read[List](f, path+separator+"continue="+url.QueryEscape(token))
		pages = append(pages, page)
		if token = Pointer(&page).GetContinue(); token == "" {
			return pages
		}
	}
	Fail(path + " has no last page")
	return nil
}

// beRefused matches a response with this code and a Status that says so, gives a reason
// and a message, and satisfies all of the matchers.
func beRefused(code int, matchers ...types.GomegaMatcher) types.GomegaMatcher {
	return And(HaveHTTPStatus(code), WithTransform(func(w *httptest.ResponseRecorder) (metav1.Status, error) {
		var status metav1.Status
		err := json.Unmarshal(w.Body.Bytes(), &status)
		return status, err
	}, And(append([]types.GomegaMatcher{
		HaveField("Kind", "Status"), HaveField("Code", int32(code)), HaveField("Reason", Not(BeEmpty())), HaveField("Message", Not(BeEmpty())),
	}, matchers...)...)))
}

// withReason matches a Status with this reason.
func withReason(reason metav1.StatusReason) types.GomegaMatcher {
	return HaveField("Reason", reason)
}

// withCause matches a Status one of whose causes is this.
func withCause(cause metav1.CauseType) types.GomegaMatcher {
	return HaveField("Details.Causes", ContainElement(HaveField("Type", cause)))
}

// saying matches a Status whose message contains all of these words.
func saying(words ...string) types.GomegaMatcher {
	var all []types.GomegaMatcher
	for _, w := range words {
		all = append(all, ContainSubstring(w))
	}
	return HaveField("Message", And(all...))
}
