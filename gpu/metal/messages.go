package metal

// message is one line of the table of all messages that the package sends.
type message struct {
	// receiver is the class or protocol that declares the method.
	receiver, selector string
	// params and result are the Objective-C types. All fit one integer register.
	params []string
	result string
	// owned: the caller owns a reference to the result (new, copy, retain).
	// pooled: the result is autoreleased, and lives as long as the pool.
	owned, pooled bool
	// since is the first macOS that has the method. All are older than what Go
	// itself needs, macOS 12, so none is optional.
	since string
	// doc is the method's page below developer.apple.com/documentation.
	doc string
}

type sel int

const (
	selNew sel = iota
	selDrain
	selRetain
	selRelease
	selCount
	selObjectAtIndex
	selUTF8String
	selName
	selRegistryID
	selNewQueue
	selNewSharedEvent
	selQueueDevice
	selCommandBuffer
	selEncodeSignal
	selCommit
	selStatus
	selError
	selWaitCompleted
	selCode
	selDescription
	selSignaledValue
	selWaitSignaled
	numSel
)

var messages = [numSel]message{
	selNew:     {"NSAutoreleasePool", "new", nil, "instancetype", true, false, "10.0", "objectivec/nsobject-swift.class/new"},
	selDrain:   {"NSAutoreleasePool", "drain", nil, "void", false, false, "10.0", "foundation/nsautoreleasepool/drain"},
	selRetain:  {"NSObject", "retain", nil, "instancetype", true, false, "10.0", "objectivec/nsobject-c.protocol/retain"},
	selRelease: {"NSObject", "release", nil, "void", false, false, "10.0", "objectivec/nsobject-c.protocol/release"},

	selCount:         {"NSArray", "count", nil, "NSUInteger", false, false, "10.0", "foundation/nsarray/count"},
	selObjectAtIndex: {"NSArray", "objectAtIndex:", []string{"NSUInteger"}, "id", false, false, "10.0", "foundation/nsarray/object(at:)"},
	selUTF8String:    {"NSString", "UTF8String", nil, "const char *", false, false, "10.0", "foundation/nsstring/utf8string"},

	selName:       {"MTLDevice", "name", nil, "NSString *", false, true, "10.11", "metal/mtldevice/name"},
	selRegistryID: {"MTLDevice", "registryID", nil, "uint64_t", false, false, "10.13", "metal/mtldevice/registryid"},
	selNewQueue: {"MTLDevice", "newCommandQueueWithMaxCommandBufferCount:", []string{"NSUInteger"}, "id<MTLCommandQueue>", true, false, "10.11",
		"metal/mtldevice/makecommandqueue(maxcommandbuffercount:)"},
	selNewSharedEvent: {"MTLDevice", "newSharedEvent", nil, "id<MTLSharedEvent>", true, false, "10.14", "metal/mtldevice/makesharedevent()"},

	selQueueDevice:   {"MTLCommandQueue", "device", nil, "id<MTLDevice>", false, false, "10.11", "metal/mtlcommandqueue/device"},
	selCommandBuffer: {"MTLCommandQueue", "commandBuffer", nil, "id<MTLCommandBuffer>", false, true, "10.11", "metal/mtlcommandqueue/makecommandbuffer()"},

	selEncodeSignal: {"MTLCommandBuffer", "encodeSignalEvent:value:", []string{"id<MTLEvent>", "uint64_t"}, "void", false, false, "10.14",
		"metal/mtlcommandbuffer/encodesignalevent(_:value:)"},
	selCommit:        {"MTLCommandBuffer", "commit", nil, "void", false, false, "10.11", "metal/mtlcommandbuffer/commit()"},
	selStatus:        {"MTLCommandBuffer", "status", nil, "MTLCommandBufferStatus", false, false, "10.11", "metal/mtlcommandbuffer/status"},
	selError:         {"MTLCommandBuffer", "error", nil, "NSError *", false, true, "10.11", "metal/mtlcommandbuffer/error"},
	selWaitCompleted: {"MTLCommandBuffer", "waitUntilCompleted", nil, "void", false, false, "10.11", "metal/mtlcommandbuffer/waituntilcompleted()"},

	selCode:        {"NSError", "code", nil, "NSInteger", false, false, "10.0", "foundation/nserror/code"},
	selDescription: {"NSError", "localizedDescription", nil, "NSString *", false, true, "10.0", "foundation/nserror/localizeddescription"},

	selSignaledValue: {"MTLSharedEvent", "signaledValue", nil, "uint64_t", false, false, "10.14", "metal/mtlsharedevent/signaledvalue"},
	selWaitSignaled: {"MTLSharedEvent", "waitUntilSignaledValue:timeoutMS:", []string{"uint64_t", "uint64_t"}, "BOOL", false, false, "12.0",
		"metal/mtlsharedevent/wait(untilsignaledvalue:timeoutms:)"},
}

// States of a command buffer (MTLCommandBufferStatus).
const (
	bufferCompleted = 4
	bufferError     = 5
)
