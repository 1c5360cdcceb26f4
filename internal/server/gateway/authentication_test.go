package gateway_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"
	"github.com/go-logr/logr"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/internal/conversation"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/daemonapi/v1/daemonv1connect"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/server/checkpointrequests"
	"github.com/clew-dev/clew/internal/server/gateway"
)

const appendPath = "/clew.daemon.v1.DaemonService/Append"

// heldStore lets a test decide when records are stored.
type heldStore struct {
	gateway.Store
	entered chan history.Task
	release chan struct{}
}

func (s heldStore) Append(ctx context.Context, task history.Task, _ int64, _ []history.Record) (int64, error) {
	s.entered <- task
	select {
	case <-s.release:
		return 1, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func serveStore(t testing.TB, store gateway.Store, known tokens) *httptest.Server {
	t.Helper()
	return serveWith(t, gateway.Options{Store: store, Authenticator: known, Requests: checkpointrequests.New(), Log: logr.Discard()})
}

func serveWith(t testing.TB, o gateway.Options) *httptest.Server {
	t.Helper()
	g := gateway.New(o)
	mux := http.NewServeMux()
	mux.Handle(g.Handler())
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// post sends a body as a daemon does, except for what the test changes.
func post(t testing.TB, server *httptest.Server, body io.Reader, headers map[string]string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+appendPath, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/proto")
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// unread is an endless body that counts the bytes read from it.
type unread struct {
	mu    sync.Mutex
	bytes int
}

func (u *unread) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes += len(p)
	return len(p), nil
}

func (u *unread) read() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes
}

// emptyRecords returns n records of two bytes each on the wire.
func emptyRecords(n int) []byte { return bytes.Repeat([]byte{0x0a, 0x00}, n) }

func allocated(f func()) (mebibytes uint64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) >> 20
}

var _ = Describe("Access to the gateway", func() {
	It("nothing is read from a stranger", func() {
		t := GinkgoTB()
		server := serveStore(t, nil, tokens{})
		endless := &unread{}
		response := post(t, server, endless, nil)
		Expect(response.StatusCode).To(Equal(http.StatusUnauthorized))
		// Data in transit is in the buffers of the connection.
		Expect(endless.read()).To(BeNumerically("<", 8<<20))
	})

	It("a stranger's request takes no memory", func() {
		t := GinkgoTB()
		server := serveStore(t, nil, tokens{})
		var zipped bytes.Buffer
		zip := gzip.NewWriter(&zipped)
		_, err := zip.Write(emptyRecords(4 << 20))
		Expect(errors.Join(err, zip.Close())).To(Succeed())
		for name, headers := range map[string]map[string]string{
			"zipped":             {"Content-Encoding": "gzip"},
			"zipped as a stream": {"Content-Type": "application/connect+proto", "Connect-Content-Encoding": "gzip"},
			"plain":              nil,
		} {
			var status int
			Expect(allocated(func() {
				status = post(t, server, bytes.NewReader(zipped.Bytes()), headers).StatusCode
			})).To(BeNumerically("<", 20), name)
			Expect(status).To(BeElementOf(http.StatusUnauthorized, http.StatusUnsupportedMediaType), name)
		}
	})

	It("only the daemons' content types are decoded", func() {
		t := GinkgoTB()
		server := serveStore(t, nil, tokens{"a1": identity("a", 1)})
		for name, tt := range map[string]struct {
			headers map[string]string
			want    int
		}{
			"JSON":       {map[string]string{"Content-Type": "application/json"}, http.StatusUnsupportedMediaType},
			"gRPC":       {map[string]string{"Content-Type": "application/grpc+proto"}, http.StatusUnsupportedMediaType},
			"compressed": {map[string]string{"Content-Encoding": "gzip"}, http.StatusUnsupportedMediaType},
		} {
			tt.headers["Authorization"] = "Bearer a1"
			if got := post(t, server, bytes.NewReader(nil), tt.headers).StatusCode; got != tt.want {
				t.Errorf("%s: status %d, want %d", name, got, tt.want)
			}
		}
	})

	// A few mebibytes of empty records would be hundreds in memory: a pod's token is no
	// reason to trust its requests.
	It("a known caller's request takes little memory", func() {
		t := GinkgoTB()
		server := serveStore(t, nil, tokens{"a1": identity("a", 1)})
		many, err := proto.Marshal(&daemonv1.AppendRequest{Records: []*daemonv1.Record{{
			Sequence: 1, Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{}},
		}}})
		Expect(err).NotTo(HaveOccurred())
		for name, body := range map[string][]byte{
			"records": emptyRecords(4 << 20), "records after one that is real": append(many, emptyRecords(4<<20)...),
		} {
			var status int
			Expect(allocated(func() {
				status = post(t, server, bytes.NewReader(body), map[string]string{"Authorization": "Bearer a1"}).StatusCode
			})).To(BeNumerically("<", 100), name)
			Expect(status).To(Equal(http.StatusBadRequest), name)
		}
	})

	It("one namespace does not delay another", func() {
		t := GinkgoTB()
		known := tokens{"honest": identity("honest", 1)}
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"} {
			hostile := identity(name, 1)
			hostile.Namespace = "hostile"
			known[name] = hostile
		}
		store := heldStore{entered: make(chan history.Task, 100), release: make(chan struct{})}
		server := serveStore(t, store, known)
		send := func(ctx context.Context, token string) error {
			client := daemonv1connect.NewDaemonServiceClient(&http.Client{Transport: withToken{token, server.Client().Transport}}, server.URL)
			_, err := client.Append(ctx, connect.NewRequest(&daemonv1.AppendRequest{Records: []*daemonv1.Record{text(1, daemonv1.Role_ROLE_USER, "x")}}))
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		var hostile sync.WaitGroup
		for token := range known {
			if token == "honest" {
				continue
			}
			for range 20 {
				hostile.Go(func() { _ = send(ctx, token) })
			}
		}
		// Eight of them are processed, and not a ninth.
		for range 8 {
			Eventually(store.entered, "20s").Should(Receive(HaveField("Namespace", "hostile")))
		}
		done := make(chan error, 1)
		go func() { done <- send(t.Context(), "honest") }()
		Eventually(store.entered, "20s").Should(Receive(HaveField("Name", "honest")))
		close(store.release)
		Eventually(done, "20s").Should(Receive(BeNil()))
		cancel()
		hostile.Wait()
	})

	// Two namespaces whose requests keep the store busy leave connections free, and a
	// third one's requests get slots.
	It("two namespaces do not take all connections", func() {
		t := GinkgoTB()
		const connections = 10
		known := tokens{"honest": identity("honest", 1)}
		for i := range 24 {
			hostile := identity(fmt.Sprint("hostile-", i), 1)
			hostile.Namespace = fmt.Sprint("hostile-", i%2)
			known[hostile.TaskName] = hostile
		}
		store := heldStore{entered: make(chan history.Task, 100), release: make(chan struct{})}
		server := serveWith(t, gateway.Options{Store: store, Connections: connections, Authenticator: known, Requests: checkpointrequests.New(), Log: logr.Discard()})
		send := func(ctx context.Context, token string) error {
			client := daemonv1connect.NewDaemonServiceClient(&http.Client{Transport: withToken{token, server.Client().Transport}}, server.URL)
			_, err := client.Append(ctx, connect.NewRequest(&daemonv1.AppendRequest{Records: []*daemonv1.Record{text(1, daemonv1.Role_ROLE_USER, "x")}}))
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		var hostile sync.WaitGroup
		for token := range known {
			if token != "honest" {
				hostile.Go(func() { _ = send(ctx, token) })
			}
		}
		Eventually(func() int { return len(store.entered) }, "20s").Should(BeNumerically(">=", 4))
		Consistently(func() int { return len(store.entered) }, "300ms").Should(BeNumerically("<", connections-2))
		done := make(chan error, 1)
		go func() { done <- send(t.Context(), "honest") }()
		Eventually(store.entered, "20s").Should(Receive(HaveField("Name", "honest")))
		close(store.release)
		Eventually(done, "20s").Should(Receive(BeNil()))
		cancel()
		hostile.Wait()
	})

	It("a flood of records waits for its rate limit", func() {
		t := GinkgoTB()
		store := heldStore{entered: make(chan history.Task, 100), release: make(chan struct{})}
		close(store.release)
		gw := gateway.New(gateway.Options{
			Store: store, Authenticator: tokens{"a1": identity("a", 1), "b1": identity("b", 1)}, Requests: checkpointrequests.New(), Log: logr.Discard(),
			TaskBytesPerSecond: 1 << 10,
		})
		mux := http.NewServeMux()
		mux.Handle(gw.Handler())
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		send := func(token string, timeout time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			client := daemonv1connect.NewDaemonServiceClient(&http.Client{Transport: withToken{token, http.DefaultTransport}}, server.URL)
			_, err := client.Append(ctx, connect.NewRequest(&daemonv1.AppendRequest{Records: []*daemonv1.Record{
				text(1, daemonv1.Role_ROLE_USER, "1"), text(2, daemonv1.Role_ROLE_USER, "2"), text(3, daemonv1.Role_ROLE_USER, "3"),
				text(4, daemonv1.Role_ROLE_USER, "4"), text(5, daemonv1.Role_ROLE_USER, "5"), text(6, daemonv1.Role_ROLE_USER, "6"),
			}}))
			return err
		}
		// Two requests use up what the task has saved, and seconds beyond.
		Expect(send("a1", time.Minute)).To(Succeed())
		Expect(send("a1", time.Minute)).To(Succeed())
		Expect(send("a1", 100*time.Millisecond)).NotTo(Succeed())
		Expect(send("b1", time.Minute)).To(Succeed())
	})

	It("a caller that does not read a response delays no other", func() {
		t := GinkgoTB()
		known := crowd()
		server := serveStore(t, talkativeStore{known: known}, known)
		// Compressed, gigabytes of such a response would fit into what is sent unread.
		client := daemonv1connect.NewDaemonServiceClient(server.Client(), server.URL, connect.WithAcceptCompression("gzip", nil, nil))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for token := range known {
			for range 2 {
				if token == "other" {
					continue
				}
				request := connect.NewRequest(&daemonv1.ConversationRequest{})
				request.Header().Set("Authorization", "Bearer "+token)
				stream, err := client.Conversation(ctx, request)
				Expect(err).NotTo(HaveOccurred())
				Expect(stream.Receive()).To(BeTrue(), "one message is read, and no more")
			}
		}
		served(t, server)
	})

	It("a request whose body does not arrive delays no other", func() {
		t := GinkgoTB()
		known := crowd()
		server := serveStore(t, talkativeStore{known: known}, known)
		ctx, cancel := context.WithCancel(t.Context())
		var under sync.WaitGroup
		t.Cleanup(func() { cancel(); under.Wait() })
		var sending sync.WaitGroup
		for token := range known {
			for range 2 {
				if token == "other" {
					continue
				}
				sending.Add(1)
				body, writer := io.Pipe()
				request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+appendPath, body)
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("Content-Type", "application/proto")
				request.Header.Set("Authorization", "Bearer "+token)
				under.Go(func() {
					defer GinkgoRecover()
					if response, err := server.Client().Do(request); err == nil {
						response.Body.Close()
					}
				})
				go func() {
					defer GinkgoRecover()
					_, _ = writer.Write([]byte{0x0a}) // the rest does not arrive
					sending.Done()
				}()
			}
		}
		sending.Wait()
		served(t, server)
	})

	// The memory for one namespace's large requests is bounded, and others are served
	// beside them.
	It("few large requests of a namespace are held at once", func() {
		t := GinkgoTB()
		body, err := proto.Marshal(&daemonv1.AppendRequest{Records: []*daemonv1.Record{text(1, daemonv1.Role_ROLE_USER, strings.Repeat("x", 3<<20))}})
		Expect(err).NotTo(HaveOccurred())
		fewLargeAreHeld(t, body)
	})

	It("requests that become large count as large", func() {
		t := GinkgoTB()
		request := &daemonv1.AppendRequest{}
		for n := range int64(30_000) {
			request.Records = append(request.Records, &daemonv1.Record{Sequence: n + 1})
		}
		body, err := proto.Marshal(request)
		Expect(err).NotTo(HaveOccurred())
		Expect(len(body)).To(BeNumerically("<", 256<<10))
		fewLargeAreHeld(t, body)
	})

	// The memory of such a request is held as long as its stream.
	It("a request for a stream must be small", func() {
		t := GinkgoTB()
		server := serveStore(t, heldStore{}, crowd())
		// An unknown field is kept as it came.
		message := protowire.AppendBytes(protowire.AppendTag(nil, 100, protowire.BytesType), make([]byte, 1<<20))
		framed := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...) //nolint:gosec // a mebibyte
		path := strings.Replace(appendPath, "/Append", "/Commands", 1)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, bytes.NewReader(framed))
		Expect(err).NotTo(HaveOccurred())
		request.Header.Set("Content-Type", "application/connect+proto")
		request.Header.Set("Authorization", "Bearer other")
		response, err := server.Client().Do(request)
		Expect(err).NotTo(HaveOccurred())
		defer response.Body.Close()
		end, err := io.ReadAll(response.Body)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(end)).To(ContainSubstring("resource_exhausted"))
	})
})

// crowd returns the tokens of four tasks in each of four namespaces, and of one task in
// another, "other".
func crowd() tokens {
	known := tokens{"other": {Namespace: "elsewhere", TaskName: "other", TaskUID: "other", Attempt: 1, PodName: "p", PodUID: "u"}}
	for i := range 16 {
		name := fmt.Sprint("hostile-", i)
		known[name] = podidentity.Identity{Namespace: fmt.Sprint("hostile-", i%4), TaskName: name, TaskUID: name, Attempt: 1, PodName: name, PodUID: name}
	}
	return known
}

// talkativeStore has an endless conversation for every task.
type talkativeStore struct {
	gateway.Store
	known tokens
}

func (s talkativeStore) Append(context.Context, history.Task, int64, []history.Record) (int64, error) {
	return 1, nil
}

func (s talkativeStore) TaskState(_ context.Context, uid string) (history.TaskState, error) {
	id := s.known[uid]
	return history.TaskState{Task: history.Task{Namespace: id.Namespace, Name: id.TaskName, UID: uid}, Attempt: 1}, nil
}

func (s talkativeStore) Conversation(_ context.Context, _ string, after int64, _ int) ([]history.Entry, error) {
	return []history.Entry{{Position: after + 1, Message: conversation.Message{Role: conversation.RoleUser, Text: strings.Repeat("x", 1<<20)}}}, nil
}

// served fails the test if a daemon of another namespace has to wait.
func served(t testing.TB, server *httptest.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request := connect.NewRequest(&daemonv1.AppendRequest{Records: []*daemonv1.Record{{Sequence: 1}}})
	request.Header().Set("Authorization", "Bearer other")
	if _, err := daemonv1connect.NewDaemonServiceClient(server.Client(), server.URL).Append(ctx, request); err != nil {
		t.Errorf("a daemon of another namespace: %v", err)
	}
}

// fewLargeAreHeld sends such a request for four tasks of a namespace, and for one of
// another.
func fewLargeAreHeld(t testing.TB, body []byte) {
	t.Helper()
	known := crowd()
	store := heldStore{entered: make(chan history.Task, 100), release: make(chan struct{})}
	server := serveStore(t, store, known)
	var under sync.WaitGroup
	defer under.Wait()
	defer close(store.release)
	for _, token := range []string{"hostile-0", "hostile-4", "hostile-8", "hostile-12", "other"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+appendPath, bytes.NewReader(body))
		Expect(err).NotTo(HaveOccurred())
		request.Header.Set("Content-Type", "application/proto")
		request.Header.Set("Authorization", "Bearer "+token)
		// A daemon has a connection of its own, and with it HTTP/2's flow control.
		transport := server.Client().Transport.(*http.Transport).Clone()
		t.Cleanup(transport.CloseIdleConnections)
		under.Go(func() {
			defer GinkgoRecover()
			if response, err := (&http.Client{Transport: transport}).Do(request); err == nil {
				response.Body.Close()
			}
		})
	}
	var entered []string
	for range 3 {
		var task history.Task
		Eventually(store.entered, "20s").Should(Receive(&task))
		entered = append(entered, task.Namespace)
	}
	Expect(entered).To(ConsistOf("hostile-0", "hostile-0", "elsewhere"))
	Consistently(store.entered, "500ms").ShouldNot(Receive())
}
