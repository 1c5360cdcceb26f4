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
	"github.com/clew-dev/clew/internal/testing/cases"
)

const appendPath = "/clew.daemon.v1.DaemonService/Append"

// heldStore lets a test decide when records are stored.
type heldStore struct {
	gateway.Store
	entered chan history.Task
	release chan struct{}
}

func (s heldStore) Spending(context.Context, history.Task, string) (history.Spending, error) {
	return history.Spending{}, nil
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

func serveStore(store gateway.Store, known tokens) *httptest.Server {
	return serveWith(gateway.Options{Store: store, Authenticator: known})
}

// serveWith serves a gateway with these options, without checkpoint requests.
func serveWith(o gateway.Options) *httptest.Server {
	o.Requests, o.Log = checkpointrequests.New(), logr.Discard()
	return startServer(gateway.New(o))
}

// post sends a body as a daemon does, except for what the spec changes.
func post(server *httptest.Server, body io.Reader, headers map[string]string) *http.Response {
	GinkgoHelper()
	request, err := http.NewRequestWithContext(GinkgoT().Context(), http.MethodPost, server.URL+appendPath, body)
	Expect(err).NotTo(HaveOccurred())
	request.Header.Set("Content-Type", "application/proto")
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	response, err := server.Client().Do(request)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(response.Body.Close)
	return response
}

// sendOne sends one small record.
func sendOne(ctx context.Context, server *httptest.Server, token string) error {
	_, err := clientOf(server, token).Append(ctx, connect.NewRequest(&daemonv1.AppendRequest{Records: []*daemonv1.Record{text(1, daemonv1.Role_ROLE_USER, "x")}}))
	return err
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
		server := serveStore(nil, tokens{})
		endless := &unread{}
		response := post(server, endless, nil)
		Expect(response).To(HaveHTTPStatus(http.StatusUnauthorized))
		// Data in transit is in the buffers of the connection.
		Expect(endless.read()).To(BeNumerically("<", 8<<20))
	})

	It("a stranger's request takes no memory", func() {
		server := serveStore(nil, tokens{})
		var zipped bytes.Buffer
		zip := gzip.NewWriter(&zipped)
		_, err := zip.Write(emptyRecords(4 << 20))
		Expect(errors.Join(err, zip.Close())).To(Succeed())
		for name, headers := range map[string]map[string]string{
			"zipped":             {"Content-Encoding": "gzip"},
			"zipped as a stream": {"Content-Type": "application/connect+proto", "Connect-Content-Encoding": "gzip"},
			"plain":              nil,
		} {
			By(name)
			var response *http.Response
			Expect(allocated(func() {
				response = post(server, bytes.NewReader(zipped.Bytes()), headers)
			})).To(BeNumerically("<", 20), "mebibytes for a body that is %s", name)
			Expect(response).To(HaveHTTPStatus(http.StatusUnauthorized, http.StatusUnsupportedMediaType), name)
		}
	})

	Describe("only the daemons' content types are decoded", func() {
		for name, header := range cases.Sorted(map[string][2]string{
			"JSON":       {"Content-Type", "application/json"},
			"gRPC":       {"Content-Type", "application/grpc+proto"},
			"compressed": {"Content-Encoding", "gzip"},
		}) {
			It("not "+name, func() {
				server := serveStore(nil, tokens{"a1": identity("a", 1)})
				response := post(server, bytes.NewReader(nil), map[string]string{"Authorization": "Bearer a1", header[0]: header[1]})
				Expect(response).To(HaveHTTPStatus(http.StatusUnsupportedMediaType))
			})
		}
	})

	// A few mebibytes of empty records would be hundreds in memory: a pod's token is no
	// reason to trust its requests.
	It("a known caller's request takes little memory", func() {
		server := serveStore(nil, tokens{"a1": identity("a", 1)})
		many, err := proto.Marshal(&daemonv1.AppendRequest{Records: []*daemonv1.Record{{
			Sequence: 1, Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{}},
		}}})
		Expect(err).NotTo(HaveOccurred())
		for name, body := range map[string][]byte{
			"records": emptyRecords(4 << 20), "records after one that is real": append(many, emptyRecords(4<<20)...),
		} {
			By(name)
			var response *http.Response
			Expect(allocated(func() {
				response = post(server, bytes.NewReader(body), map[string]string{"Authorization": "Bearer a1"})
			})).To(BeNumerically("<", 100), "mebibytes for %s", name)
			Expect(response).To(HaveHTTPStatus(http.StatusBadRequest), name)
		}
	})

	It("one namespace does not delay another", func() {
		known := tokens{"honest": identity("honest", 1)}
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"} {
			hostile := identity(name, 1)
			hostile.Namespace = "hostile"
			known[name] = hostile
		}
		store := heldStore{entered: make(chan history.Task, 100), release: make(chan struct{})}
		server := serveStore(store, known)
		ctx, cancel := context.WithCancel(GinkgoT().Context())
		var hostile sync.WaitGroup
		for token := range known {
			if token == "honest" {
				continue
			}
			for range 20 {
				hostile.Go(func() { _ = sendOne(ctx, server, token) })
			}
		}
		for i := range 8 {
			Expect(next(store.entered, "a request that is processed")).To(HaveField("Namespace", "hostile"), "request %d", i+1)
		}
		done := make(chan error, 1)
		go func() { done <- sendOne(ctx, server, "honest") }()
		Expect(next(store.entered, "the request of another namespace")).To(HaveField("Name", "honest"), "no ninth request of the namespace is processed")
		close(store.release)
		Expect(next(done, "the response to the other namespace")).To(Succeed())
		cancel()
		hostile.Wait()
	})

	// Two namespaces whose requests keep the store busy leave connections free, and a
	// third one's requests get slots.
	It("two namespaces do not take all connections", func() {
		const connections = 10
		known := tokens{"honest": identity("honest", 1)}
		for i := range 24 {
			hostile := identity(fmt.Sprint("hostile-", i), 1)
			hostile.Namespace = fmt.Sprint("hostile-", i%2)
			known[hostile.TaskName] = hostile
		}
		store := heldStore{entered: make(chan history.Task, 100), release: make(chan struct{})}
		server := serveWith(gateway.Options{Store: store, Connections: connections, Authenticator: known})
		ctx, cancel := context.WithCancel(GinkgoT().Context())
		var hostile sync.WaitGroup
		for token := range known {
			if token != "honest" {
				hostile.Go(func() { _ = sendOne(ctx, server, token) })
			}
		}
		Eventually(func() int { return len(store.entered) }, "20s").Should(BeNumerically(">=", 4))
		Consistently(func() int { return len(store.entered) }, "300ms").Should(BeNumerically("<", connections-2))
		done := make(chan error, 1)
		go func() { done <- sendOne(ctx, server, "honest") }()
		Eventually(store.entered, "20s").Should(Receive(HaveField("Name", "honest")))
		close(store.release)
		Expect(next(done, "the response to the third namespace")).To(Succeed())
		cancel()
		hostile.Wait()
	})

	It("a flood of records waits for its rate limit", func() {
		store := heldStore{entered: make(chan history.Task, 100), release: make(chan struct{})}
		close(store.release)
		server := serveWith(gateway.Options{
			Store: store, Authenticator: tokens{"a1": identity("a", 1), "b1": identity("b", 1)}, TaskBytesPerSecond: 1 << 10,
		})
		send := func(token string, timeout time.Duration) error {
			ctx, cancel := context.WithTimeout(GinkgoT().Context(), timeout)
			defer cancel()
			_, err := clientOf(server, token).Append(ctx, connect.NewRequest(&daemonv1.AppendRequest{Records: []*daemonv1.Record{
				text(1, daemonv1.Role_ROLE_USER, "1"), text(2, daemonv1.Role_ROLE_USER, "2"), text(3, daemonv1.Role_ROLE_USER, "3"),
				text(4, daemonv1.Role_ROLE_USER, "4"), text(5, daemonv1.Role_ROLE_USER, "5"), text(6, daemonv1.Role_ROLE_USER, "6"),
			}}))
			return err
		}
		// Two requests use up what the task has saved, and seconds beyond.
		Expect(send("a1", time.Minute)).To(Succeed())
		Expect(send("a1", time.Minute)).To(Succeed())
		Expect(send("a1", 100*time.Millisecond)).NotTo(Succeed(), "the third waits")
		Expect(send("b1", time.Minute)).To(Succeed(), "another task does not wait")
	})

	It("a caller that does not read a response delays no other", func() {
		known := crowd()
		server := serveStore(talkativeStore{known: known}, known)
		// Compressed, gigabytes of such a response would fit into what is sent unread.
		client := daemonv1connect.NewDaemonServiceClient(server.Client(), server.URL, connect.WithAcceptCompression("gzip", nil, nil))
		ctx, cancel := context.WithCancel(GinkgoT().Context())
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
		expectServed(server)
	})

	It("a request whose body does not arrive delays no other", func() {
		known := crowd()
		server := serveStore(talkativeStore{known: known}, known)
		ctx, cancel := context.WithCancel(GinkgoT().Context())
		var under sync.WaitGroup
		DeferCleanup(func() { cancel(); under.Wait() })
		var sending sync.WaitGroup
		for token := range known {
			for range 2 {
				if token == "other" {
					continue
				}
				sending.Add(1)
				body, writer := io.Pipe()
				request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+appendPath, body)
				Expect(err).NotTo(HaveOccurred())
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
		expectServed(server)
	})

	// The memory for one namespace's large requests is bounded, and others are served
	// beside them.
	It("few large requests of a namespace are held at once", func() {
		body, err := proto.Marshal(&daemonv1.AppendRequest{Records: []*daemonv1.Record{text(1, daemonv1.Role_ROLE_USER, strings.Repeat("x", 3<<20))}})
		Expect(err).NotTo(HaveOccurred())
		expectFewLargeHeld(body)
	})

	It("requests that become large count as large", func() {
		request := &daemonv1.AppendRequest{}
		for n := range int64(30_000) {
			request.Records = append(request.Records, &daemonv1.Record{Sequence: n + 1})
		}
		body, err := proto.Marshal(request)
		Expect(err).NotTo(HaveOccurred())
		Expect(len(body)).To(BeNumerically("<", 256<<10))
		expectFewLargeHeld(body)
	})

	// The memory of such a request is held as long as its stream.
	It("a request for a stream must be small", func() {
		server := serveStore(heldStore{}, crowd())
		// An unknown field is kept as it came.
		message := protowire.AppendBytes(protowire.AppendTag(nil, 100, protowire.BytesType), make([]byte, 1<<20))
		framed := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...) //nolint:gosec // a mebibyte
		path := strings.Replace(appendPath, "/Append", "/Commands", 1)
		request, err := http.NewRequestWithContext(GinkgoT().Context(), http.MethodPost, server.URL+path, bytes.NewReader(framed))
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

func (s talkativeStore) Spending(context.Context, history.Task, string) (history.Spending, error) {
	return history.Spending{}, nil
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

// expectServed expects that a daemon of another namespace does not wait.
func expectServed(server *httptest.Server) {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(GinkgoT().Context(), 10*time.Second)
	defer cancel()
	Expect(sendOne(ctx, server, "other")).To(Succeed(), "a daemon of another namespace")
}

// expectFewLargeHeld sends such a request for four tasks of a namespace, and for one of
// another, and expects that two of the namespace are held at once.
func expectFewLargeHeld(body []byte) {
	GinkgoHelper()
	known := crowd()
	store := heldStore{entered: make(chan history.Task, 100), release: make(chan struct{})}
	server := serveStore(store, known)
	var under sync.WaitGroup
	defer under.Wait()
	defer close(store.release)
	for _, token := range []string{"hostile-0", "hostile-4", "hostile-8", "hostile-12", "other"} {
		request, err := http.NewRequestWithContext(GinkgoT().Context(), http.MethodPost, server.URL+appendPath, bytes.NewReader(body))
		Expect(err).NotTo(HaveOccurred())
		request.Header.Set("Content-Type", "application/proto")
		request.Header.Set("Authorization", "Bearer "+token)
		// A daemon has a connection of its own, and with it HTTP/2's flow control.
		transport := server.Client().Transport.(*http.Transport).Clone()
		DeferCleanup(transport.CloseIdleConnections)
		under.Go(func() {
			defer GinkgoRecover()
			if response, err := (&http.Client{Transport: transport}).Do(request); err == nil {
				response.Body.Close()
			}
		})
	}
	var entered []string
	for range 3 {
		entered = append(entered, next(store.entered, "a request that is processed").Namespace)
	}
	Expect(entered).To(ConsistOf("hostile-0", "hostile-0", "elsewhere"))
	Consistently(store.entered, "500ms").ShouldNot(Receive(), "the others wait")
}
