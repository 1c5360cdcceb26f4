package historyapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/testing/cases"
)

var _ = Describe("Importing a history over the API", func() {
	// The caller decides how fast a body arrives: until then, it holds nothing of the
	// history store, and no other namespace waits.
	It("an import is read before it is stored", func() {
		f := quiet()
		f.archive.lines = someLines()
		exported := f.ask(http.MethodGet, exportPath, "").Body.String()

		body, slow := io.Pipe()
		answered := make(chan *httptest.ResponseRecorder, 1)
		go func() {
			defer GinkgoRecover()
			answered <- f.send("ann", http.MethodPost, historiesPath, body)
		}()
		half := len(exported) / 2
		By("sending one half")
		_, err := io.WriteString(slow, exported[:half])
		Expect(err).NotTo(HaveOccurred())
		Expect(f.archive.imports.Load()).To(BeZero(), "the import began before its body was there")
		By("sending the other half")
		_, err = io.WriteString(slow, exported[half:])
		Expect(err).NotTo(HaveOccurred())
		Expect(slow.Close()).To(Succeed())
		var w *httptest.ResponseRecorder
		Eventually(answered, "20s").Should(Receive(&w))
		Expect(w).To(HaveHTTPStatus(http.StatusCreated))
		Expect(f.archive.imports.Load()).To(BeEquivalentTo(1))
	})

	// An existing Task writes its history itself. Whoever imported a history with its UID
	// before it began would give it a past, or take its place in the history of all
	// namespaces.
	Describe("no import takes the place of an existing task", func() {
		imported := func(kind, body string) string {
			return `{"kind":"` + kind + `","body":` + body + "}\n"
		}
		for name, test := range cases.Sorted(map[string]struct {
			body string
			code int
			says string
		}{
			"the UID of a Task, of the namespace or of another, is refused": {imported("task", `{"name":"c","uid":"live"}`), http.StatusConflict, "a Task with the UID live exists"},
			"the same behind empty lines is refused":                        {"\n\n" + imported("task", `{"name":"c","uid":"live"}`), http.StatusConflict, "a Task with the UID live exists"},
			"a UID given twice is refused":                                  {imported("task", `{"uid":"gone","UID":"live"}`), http.StatusConflict, "a Task with the UID live exists"},
			"the UID of a Task that is gone is imported":                    {imported("task", `{"name":"c","uid":"gone"}`), http.StatusCreated, ""},
			"nothing is imported while Tasks cannot be looked up":           {imported("task", `{"name":"c","uid":"unknown"}`), http.StatusServiceUnavailable, "try again"},
		}) {
			It(name, func() {
				f := quiet()
				f.tasks["not begun"] = "live"
				w := f.ask(http.MethodPost, historiesPath, test.body)
				expectImport(f, w, test.code, test.says)
			})
		}
	})

	// A scan for a UID is held by more than the request, so an invalid UID is not looked
	// up.
	Describe("no task is looked up by an invalid UID", func() {
		for name, test := range cases.Sorted(map[string]struct {
			uid  string
			code int
			says string
		}{
			"one of 64 bytes is imported":         {strings.Repeat("u", 64), http.StatusCreated, ""},
			"a longer one is refused":             {strings.Repeat("u", 65), http.StatusBadRequest, "longer than 64 bytes"},
			"one with a NUL is refused":           {`unknown\u0000`, http.StatusBadRequest, "characters that no UID has"},
			"none is left to the store to refuse": {"", http.StatusCreated, ""},
		}) {
			It(name, func() {
				f := quiet()
				w := f.ask(http.MethodPost, historiesPath, `{"kind":"task","body":{"name":"c","uid":"`+test.uid+`"}}`+"\n")
				expectImport(f, w, test.code, test.says)
			})
		}
	})

	It("an import has its limits", func() {
		f := quiet()
		w := f.ask(http.MethodPost, historiesPath, strings.Repeat(" ", testImportBytes+1))
		Expect(w).To(beRefused(http.StatusRequestEntityTooLarge, saying("max-import-bytes")))
		Expect(f.archive.imports.Load()).To(BeZero())
	})
})

// expectImport expects a response, and that the import was begun if, and only if, it was
// not refused.
func expectImport(f *fixture, w *httptest.ResponseRecorder, code int, says string) {
	GinkgoHelper()
	if code == http.StatusCreated {
		Expect(w).To(HaveHTTPStatus(code))
		Expect(f.archive.imports.Load()).To(BeEquivalentTo(1), "imports that were begun")
		return
	}
	Expect(w).To(beRefused(code, saying(says)))
	Expect(f.archive.imports.Load()).To(BeZero(), "imports that were begun")
}
